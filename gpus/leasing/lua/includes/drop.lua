-- Ends a lease for good, with nothing left to commit; what becomes of its slot is the caller's.
-- include: charge
-- include: caps

local function drop_lease(slot, seconds)
  local pool = load_pool(slot.pool)
  correct_charge(pool, slot, seconds)
  save_pool(pool)
  forget_lease(slot)
  run_ends(slot.tenant, slot.attempt)
  forget_job(slot.job, slot.attempt)
  redis.call('ZREM', key('expiry'), slot.attempt)
end
