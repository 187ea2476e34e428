-- How many jobs of a tenant run at once, over all pools of the fleet: its leases that exist, which `running` names for
-- tenants that have a limit. Who
-- has reached its limit is parked wherever it waits, by the script that gave the last lease, and goes on by the one
-- that ends one. What runs above a limit that was lowered runs on.
-- include: parked
-- include: leases

-- After a lease of the tenant began or ended, or its limit changed. back: tickets by pool and model that came back.
local function heed_cap(tenant, back)
  local full = is_full(tenant)
  for _, name in ipairs(redis.call('SMEMBERS', Keys.waits(tenant))) do
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
  if not rules_of(tenant).cap then return end
  redis.call('SADD', Keys.running(tenant), attempt)
  heed_cap(tenant, {})
end

local function run_ends(tenant, attempt)
  if not rules_of(tenant).cap then return end
  redis.call('SREM', Keys.running(tenant), attempt)
  heed_cap(tenant, {})
end

-- These tenants (a set) have a limit from now on, and had none: what they run already is looked for among all leases.
local function find_running(tenants)
  local flat = next(tenants) and redis.call('HGETALL', Keys.leases()) or {}
  for i = 1, #flat, 2 do
    local slot = read_slot(flat[i + 1])
    local is_held = slot and slot.attempt == flat[i]
    if is_held and tenants[slot.tenant] then redis.call('SADD', Keys.running(slot.tenant), flat[i]) end
    local follower = is_held and read_follower(slot)
    if follower and tenants[follower.tenant] then
      redis.call('SADD', Keys.running(follower.tenant), follower.attempt)
    end
  end
end
