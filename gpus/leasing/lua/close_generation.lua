-- Why: closes an index that another layout takes over: nothing is leased from it any more, not even to processes that
--   know nothing of layouts. It looks as if it were being rebuilt by an owner that is never silent. Holders of
--   leases go on in it.
-- Keys: generation, rebuild; of any layout, for they mean the same in all
-- Args:
--   owner: text, who closes it
-- Returns: 1
-- include: keys
-- include: call
local NEVER_SILENT_US = 9000000000000000

redis.call('HSET', Keys.rebuild(), 'run_id', Call.run_id, 'owner', args.owner, 'name', args.owner, 'at_us', NEVER_SILENT_US,
  'phase', 'filling')
redis.call('DEL', Keys.generation())
return 1
