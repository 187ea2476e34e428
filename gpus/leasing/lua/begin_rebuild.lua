-- Why: one at a time makes the index anew; nothing is leased meanwhile. Asked again by the same owner it is a
--   sign of life; an owner without one loses its right, and so does one of another run of the server.
-- Keys: KEYS[1] prefix
-- Args: clock, owner, µs without a sign of life after which another may take over, a name for a new rebuild, µs of the
--   latest start that the database knows of ('' or 0: none)
-- Returns: the name of its rebuild for the one that may rebuild now, else ''
-- include: gate
local owner, silence_us, name = ARGV[2], tonumber(ARGV[3]), ARGV[4]
begin_call(KEYS, ARGV, tonumber(ARGV[5]))

local rebuild = redis.call('HMGET', Keys.rebuild(), 'run_id', 'replication', 'owner', 'at_us', 'name')
if is_of_this_run(rebuild) then
  if rebuild[3] == owner then
    redis.call('HSET', Keys.rebuild(), 'at_us', now)
    return rebuild[5]
  end
  if now - rebuild[4] < silence_us then return '' end
end
redis.call('HSET', Keys.rebuild(), 'run_id', run_id, 'replication', replication, 'owner', owner, 'name', name,
  'at_us', now, 'phase', 'wiping')
redis.call('DEL', Keys.generation())
return name
