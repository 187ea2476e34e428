-- Tenant.max_running: the most leases of a tenant at a time, over all pools of the fleet. `running` lists the leases of
-- tenants that have a limit. At the limit the script that grants the last lease parks the tenant in every pool where it
-- waits; the script that ends a lease releases it. Jobs above a lowered limit keep running. Limits at submit are in
-- jobs/limits/submit_limits.py.
-- include: keys
-- include: pools
-- include: slots
-- include: line
-- include: leases
-- include: parked

-- Parks or releases the tenant, after one of its leases began or ended, or its limit changed. back: tickets that wait
-- again, by pool and model.
local function apply_max_running(tenant, back)
  local at_limit = Pools.is_at_max_running(tenant)
  for _, name in ipairs(redis.call('SMEMBERS', Keys.waits(tenant))) do
    local pool = Pools.load_pool(name)
    if at_limit then
      Parked.park(pool, tenant, Line.AT_MAX_RUNNING)
    else
      back[name] = back[name] or {}
      Parked.unpark(pool, tenant, Line.AT_MAX_RUNNING, back[name])
    end
    Pools.save_pool(pool)
  end
end

-- A lease of the tenant begins: counts it towards max_running.
local function run_begins(tenant, attempt)
  if not Pools.rules_of(tenant).max_running then return end
  redis.call('SADD', Keys.running(tenant), attempt)
  apply_max_running(tenant, {})
end

-- A lease of the tenant ends.
local function run_ends(tenant, attempt)
  if not Pools.rules_of(tenant).max_running then return end
  redis.call('SREM', Keys.running(tenant), attempt)
  apply_max_running(tenant, {})
end

-- These tenants (a set) get their first limit: fills `running` with their leases, found among all leases.
local function find_running(tenants)
  local flat = next(tenants) and redis.call('HGETALL', Keys.leases()) or {}
  for i = 1, #flat, 2 do
    local slot = Slots.read_slot(flat[i + 1])
    local is_held = slot and slot.attempt == flat[i]
    if is_held and tenants[slot.tenant] then redis.call('SADD', Keys.running(slot.tenant), flat[i]) end
    local follower = is_held and Leases.read_follower(slot)
    if follower and tenants[follower.tenant] then
      redis.call('SADD', Keys.running(follower.tenant), follower.attempt)
    end
  end
end

return {
  apply_max_running = apply_max_running, find_running = find_running, run_begins = run_begins, run_ends = run_ends,
}
