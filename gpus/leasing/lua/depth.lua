-- Why: how long the line is, by model, and what the pool's slots do.
-- Keys: KEYS[1] prefix
-- Args: clock, pool
-- Returns: {{'band:model', count, …}, {host, pending wakes, …}, {state, slots, …}}
-- include: gate
local pool = ARGV[2]

if not gate.is_open() then return gate.refuse() end
return { redis.call('HGETALL', key.depth(pool)), redis.call('HGETALL', key.pending(pool)),
  redis.call('HGETALL', key.states(pool)) }
