-- Why: takes the lock to rebuild the index; no job is leased while it is held. The owner's next call is its heartbeat.
--   The lock is lost without a heartbeat for `silence_us`, and when the Redis server restarts. Caller:
--   jobs/index_rebuild/rebuild.py.
-- Keys: generation, rebuild, ticking
-- Args:
--   owner: text
--   silence_us: number, without a heartbeat for this long the lock is free
--   name: text, of the rebuild if a new one begins
--   latest_start_us: number, latest start of a lease in the database, 0: none
-- Returns: the name of the owner's rebuild, or '' if another owner holds the lock
-- include: keys
-- include: call
-- include: index
local owner, silence_us, name = args.owner, args.silence_us, args.name
Call.advance_past(args.latest_start_us)

local rebuild = redis.call('HMGET', Keys.rebuild(), 'run_id', 'replication', 'owner', 'at_us', 'name')
if Index.is_of_this_run(rebuild) then
  if rebuild[3] == owner then
    redis.call('HSET', Keys.rebuild(), 'at_us', Call.now)
    return rebuild[5]
  end
  if Call.now - rebuild[4] < silence_us then return '' end
end
redis.call('HSET', Keys.rebuild(), 'run_id', Call.run_id, 'replication', Call.replication, 'owner', owner, 'name', name,
  'at_us', Call.now, 'phase', 'wiping')
redis.call('DEL', Keys.generation())
return name
