-- The attempt's end waits for its commit: packed in `settling`, with an expiry like a lease's.
-- include: leases

local function settle(slot, lease_us)
  redis.call('HSET', key('settling'), slot.attempt, cmsgpack.pack(slot.name, slot.job, slot.epoch, slot.pool,
    slot.model, slot.tenant, slot.worker, slot.estimate))
  extend_lease(slot.attempt, lease_us)
end
