-- Why: opens the rebuilt index and starts leasing. The marker names the run of the Redis server that holds the index.
-- Keys: generation, rebuild, ticking
-- Args:
--   owner: text
--   id: text, of the new generation
--   none_held: text, '1' if no lease could exist when the rebuild began, else ''
-- Returns: the generation's id
-- include: keys
-- include: call
-- include: index
local owner, id, none_held = args.owner, args.id, args.none_held

local marker = redis.call('HMGET', Keys.generation(), 'run_id', 'replication', 'owner', 'id')
if Index.is_of_this_run(marker) and marker[3] == owner then return marker[4] end
local rebuild = redis.call('HMGET', Keys.rebuild(), 'run_id', 'replication', 'owner', 'phase')
if not Index.is_of_this_run(rebuild) or rebuild[3] ~= owner then
  return redis.error_reply('UNAVAILABLE another process rebuilds the index')
end
if rebuild[4] ~= 'filling' then return redis.error_reply('UNAVAILABLE the old index is not wiped yet') end
redis.call('HSET', Keys.generation(), 'id', id, 'run_id', Call.run_id, 'replication', Call.replication, 'owner', owner,
  'opened_us', Call.now, 'none_held', none_held)
Index.record_sweep()  -- a silence before the first sweep counts too
redis.call('DEL', Keys.rebuild())
return id
