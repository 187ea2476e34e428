-- Why: after a rebuild tenants take turns as before: a tenant that got more lately comes later. Only for tenants that
--   have paid nothing in this index yet, so that a rebuild that goes on charges no tenant twice.
-- Keys: class_turn, classes, generation, kept, leases, models, paid, pool, rebuild, since, tenants, turn
-- Args:
--   pool: text
--   shares: records
--     priority: number, of the band
--     tenant: text
--     seconds: number, GPU-seconds that it got lately
-- Returns: 1
-- include: keys
-- include: call
-- include: index
-- include: pools
-- include: shares
if not Index.is_open() then return Index.refuse() end
local pool = Pools.load_pool(args.pool)
for _, share in ipairs(args.shares) do
  local tenant = share.tenant
  local queue = Pools.queue_of(pool, tenant, Pools.asked_band(share.priority))
  local tag = redis.call('ZSCORE', Keys.turn(queue.at), tenant) or redis.call('HGET', Keys.paid(queue.at), tenant)
  if not tag or tonumber(tag) <= 0 then Shares.correct_turn(queue, tenant, share.seconds, Call.now) end
end
return 1
