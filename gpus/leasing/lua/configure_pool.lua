-- Why: the pool's rules, live. Both orders are kept at all times, so that switching moves no ticket.
-- Keys: KEYS[1] prefix
-- Args: clock, pool, algorithm, affinity patience µs, head start µs per priority level
-- Returns: 1
-- include: gate
-- include: pools
if not is_open() then return refuse() end
redis.call('SADD', Keys.pools(), ARGV[2])
local pool = load_pool(ARGV[2])
pool.fifo, pool.patience, pool.head_start = ARGV[3] == 'fifo', tonumber(ARGV[4]), tonumber(ARGV[5])
save_pool(pool)
return 1
