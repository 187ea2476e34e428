-- Why: how long the line is, by model, and what the pool's slots do.
-- Keys: KEYS[1] prefix
-- Args: clock, pool
-- Returns: {{model, tickets, …}, {host, pending wakes, …}, {state, slots, …}}
-- include: gate
local pool = ARGV[2]

if not is_open() then return refuse() end
return { redis.call('HGETALL', key('depth', pool)), redis.call('HGETALL', key('pending', pool)),
  redis.call('HGETALL', key('states', pool)) }
