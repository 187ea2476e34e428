-- The attempt's end waits for its commit: packed in `settling`, with an expiry like a lease's, which the caller
-- extends.
-- include: leases

local function settle(slot)
  redis.call('HSET', Keys.settling(), slot.attempt, cmsgpack.pack(slot.name, slot.job, slot.epoch, slot.pool,
    slot.model, slot.tenant, slot.worker, slot.estimate))
end
