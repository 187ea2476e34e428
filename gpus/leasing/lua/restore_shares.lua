-- Why: after a rebuild tenants take turns as if the index had never been lost: who got more lately comes later.
--   Only where a tenant has paid nothing in this index yet, so that a rebuild that goes on charges nobody twice.
-- Keys: KEYS[1] prefix
-- Args: clock, pool, then per tenant: priority (of its band), tenant, GPU-seconds
-- Returns: 1
-- include: gate
-- include: pools
-- include: fair
if not is_open() then return refuse() end
local pool = load_pool(ARGV[2])
for i = 3, #ARGV, 3 do
  local tenant = ARGV[i + 1]
  local queue = queue_of(pool, tenant, asked_band(tonumber(ARGV[i])))
  local tag = redis.call('ZSCORE', Keys.turn(queue.at), tenant) or redis.call('HGET', Keys.paid(queue.at), tenant)
  if not tag or tonumber(tag) <= 0 then correct_turn(queue, tenant, tonumber(ARGV[i + 2]), now) end
end
return 1
