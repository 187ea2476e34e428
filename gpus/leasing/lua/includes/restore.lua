-- Restores leases in an index that is being rebuilt, from the database or from their live holders. Of two attempts on one
-- slot the later lease wins, because the other attempt is about to end.
-- include: keys
-- include: pools
-- include: slots
-- include: availability
-- include: shares
-- include: line
-- include: leases
-- include: running
-- include: forecast

-- claim: `lease` of restore_lease.lua, and its worker, '' for none.
local function put_claim(slot, claim, server)
  slot.pool, slot.job, slot.attempt, slot.epoch = claim.pool, claim.job, claim.attempt, claim.epoch
  slot.model, slot.tenant, slot.priority = claim.model, claim.tenant, claim.priority
  slot.estimate, slot.leased_us, slot.worker = claim.estimate, claim.leased_us, claim.worker
  slot.adopter, slot.host, slot.charged_bands = nil, server.host, 0
  slot.band = math.max(Pools.asked_band(claim.priority), Pools.rules_of(claim.tenant).band)
end

-- The same attempt is known already: the higher epoch wins; then a lease with a worker wins.
local function reconcile(slot, claim, lease_us)
  if claim.epoch < slot.epoch then return false end
  if claim.epoch == slot.epoch and slot.worker ~= '' then
    return claim.worker == '' or claim.worker == slot.worker
  end
  Leases.pass_lease(slot, claim.worker, claim.epoch)
  Slots.save_slot(slot)
  Leases.set_expiry(slot.attempt, lease_us)
  return true
end

-- Returns true if the attempt holds its slot now, or has an uncommitted end.
local function restore_lease(claim, lease_us)
  if redis.call('HEXISTS', Keys.settling(), claim.attempt) == 1 then return true end
  local slot, server = Slots.ensure_slot(claim.slot, claim.pool)
  if slot.state == 'leased' or slot.state == 'adoptable' then
    if slot.attempt == claim.attempt then return reconcile(slot, claim, lease_us) end
    if slot.leased_us >= claim.leased_us then return false end
    Leases.forget_lease(slot)
    Running.run_ends(slot.tenant, slot.attempt)
    Leases.forget_job(slot.job, slot.attempt)
    redis.call('ZREM', Keys.expiry(), slot.attempt)
  end
  Availability.hide_slot(slot, server)
  redis.call('SADD', Keys.pools(), claim.pool)
  local pool = Pools.load_pool(claim.pool)
  Line.withdraw_ticket(pool, claim.model, claim.tenant, claim.priority, claim.job)
  Forecast.forget_forecast(pool.name, claim.job)  -- it started earlier: its wait is no sample
  put_claim(slot, claim, server)
  Shares.correct_turn(pool.queues[slot.band + 1], claim.tenant, claim.estimate, claim.leased_us)  -- not charged in this index yet
  Pools.save_pool(pool)
  redis.call('HSET', Keys.held(), slot.job, slot.attempt)
  Leases.begin_lease(slot, claim.fence, lease_us)
  Running.run_begins(claim.tenant, claim.attempt)
  if server.top > server.slots then Availability.arrange_slots(server) end
  return true
end

-- Restores an uncommitted end. Its slot stays closed (settling) if it is otherwise idle.
local function restore_end(claim, lease_us)
  local slot, server = Slots.ensure_slot(claim.slot, claim.pool)
  if slot.attempt == claim.attempt and (slot.state == 'leased' or slot.state == 'adoptable') then
    return reconcile(slot, claim, lease_us)
  end
  redis.call('HSETNX', Keys.held(), claim.job, claim.attempt)
  local is_idle = slot.state == nil or slot.state == 'free' or slot.state == 'off'
  local ending = is_idle and slot or Slots.new_slot(claim.slot, server.pool)
  if is_idle then Availability.hide_slot(slot, server) end
  put_claim(ending, claim, server)
  Leases.store_uncommitted_end(ending)
  Leases.set_expiry(ending.attempt, lease_us)
  if is_idle then
    slot.fence, slot.warm = math.max(slot.fence, claim.fence), claim.model
    Slots.set_state(slot, 'settling')
    if server.top > server.slots then Availability.arrange_slots(server) end
  end
  return true
end

return {
  restore_end = restore_end, restore_lease = restore_lease,
}
