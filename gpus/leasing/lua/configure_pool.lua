-- Why: the pool's rules, live. Both orders are kept at all times, so that switching moves no ticket.
-- Keys: KEYS[1] prefix
-- Args: clock, pool, algorithm, affinity patience µs
-- Returns: 1
-- include: gate
local pool = ARGV[2]

if not gate.is_open() then return gate.refuse() end
redis.call('SADD', key.pools, pool)
redis.call('HSET', key.pool(pool), 'algorithm', ARGV[3], 'patience_us', ARGV[4])
return 1
