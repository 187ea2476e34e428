-- The charge of a lease is corrected here, whenever one is removed: the estimate was charged at dispatch.
-- include: pools
-- include: bands
-- include: fair
-- include: leases

-- seconds: the real GPU-seconds, nil: the time held. Kept in the slot, so that an end that is taken back is not
-- charged twice. Returns them. The caller saves the lease's pool and the slot.
local function correct_charge(pool, slot, seconds)
  seconds = seconds or (now - slot.leased_us) / 1000000
  correct_turn(pool.queues[slot.band + 1], slot.tenant, seconds - slot.estimate, slot.leased_us)
  correct_bands(pool, slot.band, slot.dues, seconds - slot.estimate)
  slot.estimate = seconds
  return seconds
end

-- A run that takes longer than it was charged for is charged for twice what it took so far. Its tenant would else
-- take the slots of others meanwhile, and owe for all of it in one moment, when it ends. Saves what it changes.
local function charge_on(slot)
  local held = (now - slot.leased_us) / 1000000
  if held <= slot.estimate then return end
  local pool = load_pool(slot.pool)
  learn_longer(slot.model, slot.tenant, held)
  correct_charge(pool, slot, 2 * held)
  save_pool(pool)
  save_slot(slot)
end
