-- Why: after a rebuild, restores the fair order: a tenant with more recent GPU-seconds comes later. Only tenants that
--   were not charged in this index yet are changed, so that a resumed rebuild charges no tenant twice.
-- Keys: class_turn, classes, generation, kept, leases, models, paid, pool, rebuild, since, tenants, turn
-- Args:
--   pool: text
--   shares: records
--     priority: number, of the band
--     tenant: text
--     seconds: number, GPU-seconds that it received recently
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
