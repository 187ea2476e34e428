-- Why: changes the pool's rules at once. Both orders (fair and fifo) are maintained at all times, so switching between
--   them moves no ticket.
-- Keys: generation, pool, pools, rebuild
-- Args:
--   pool: text
--   algorithm: text, fair or fifo
--   patience_us: number, how long warm affinity may pass a ticket over
--   head_start_us: number, per priority level
-- Returns: 1
-- include: keys
-- include: index
-- include: pools
if not Index.is_open() then return Index.refuse() end
redis.call('SADD', Keys.pools(), args.pool)
local pool = Pools.load_pool(args.pool)
pool.fifo, pool.patience, pool.head_start = args.algorithm == 'fifo', args.patience_us, args.head_start_us
Pools.save_pool(pool)
return 1
