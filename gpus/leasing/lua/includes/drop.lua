-- Ends a lease for good, with nothing left to commit, and its follower with it; what becomes of its slot is the caller's.
-- include: charge
-- include: caps
-- include: follow

local function drop_lease(slot, seconds)
  drop_follower(slot)
  local pool = load_pool(slot.pool)
  correct_charge(pool, slot, seconds)
  save_pool(pool)
  forget_lease(slot)
  run_ends(slot.tenant, slot.attempt)
  forget_job(slot.job, slot.attempt)
  redis.call('ZREM', Keys.expiry(), slot.attempt)
end
