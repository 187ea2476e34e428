-- How many jobs of a tenant run at once, over all pools of the fleet: its leases that exist, which `running` names. Who
-- has reached its limit is parked wherever it waits, by the script that gave the last lease, and goes on by the one
-- that ends one. What runs above a limit that was lowered runs on.
-- include: parked

-- After a lease of the tenant began or ended, or its limit changed. back: tickets by pool and model that came back.
local function heed_cap(tenant, back)
  local full = is_full(tenant)
  for _, name in ipairs(redis.call('SMEMBERS', key('waits', tenant))) do
    local pool = load_pool(name)
    if full then
      park(pool, tenant, FULL)
    else
      back[name] = back[name] or {}
      unpark(pool, tenant, FULL, back[name])
    end
    save_pool(pool)
  end
end

local function run_begins(tenant, attempt)
  redis.call('SADD', key('running', tenant), attempt)
  if rules_of(tenant).cap then heed_cap(tenant, {}) end
end

local function run_ends(tenant, attempt)
  redis.call('SREM', key('running', tenant), attempt)
  if rules_of(tenant).cap then heed_cap(tenant, {}) end
end
