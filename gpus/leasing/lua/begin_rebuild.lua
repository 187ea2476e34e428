-- Why: one process at a time rebuilds the index; nothing is leased meanwhile. A second call by the same owner is a sign
--   of life. An owner without one loses its right, as does an owner of another run of the server. Caller:
--   jobs/index_rebuild/rebuild.py.
-- Keys: generation, rebuild, ticking
-- Args:
--   owner: text
--   silence_us: number, without a sign of life for so long, another may take over
--   name: text, of a new rebuild
--   latest_start_us: number, the latest start that the database knows of, 0: none
-- Returns: the name of its rebuild for the one that may rebuild now, else ''
-- include: keys
-- include: call
-- include: index
local owner, silence_us, name = args.owner, args.silence_us, args.name
Call.go_on_after(args.latest_start_us)

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
