-- The charge of a lease is corrected here, whenever one is removed: the estimate was charged at dispatch.
-- include: time
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
