-- Why: closes an index that another key layout replaces. It grants no lease any more, even by versions that
--   know no layouts: they see a rebuild whose owner never goes silent. Running leases continue in it.
-- Keys: generation, rebuild; of any layout, as their meaning never changes
-- Args:
--   owner: text, name of the process that closes it
-- Returns: 1
-- include: keys
-- include: call
local NEVER_SILENT_US = 9000000000000000

redis.call('HSET', Keys.rebuild(), 'run_id', Call.run_id, 'owner', args.owner, 'name', args.owner, 'at_us', NEVER_SILENT_US,
  'phase', 'filling')
redis.call('DEL', Keys.generation())
return 1
