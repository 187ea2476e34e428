-- Leases and unconfirmed ends. A lease lives in its slot's hash; `leases` finds the slot by attempt, `held` the
-- attempt by job, `expiry` says when it runs out. An end that is not committed yet is `settling:<attempt>`.
-- include: keys
-- include: time
-- include: line
-- include: fair
-- include: servers
-- include: slots
local leases = {}

-- The slot that holds this attempt, or nil.
function leases.find(attempt)
  local name = redis.call('HGET', key.leases, attempt)
  return name and slots.read(name) or nil
end

-- The slot if it is held under exactly this ref, else nil.
function leases.held_under(slot_name, job, attempt, epoch)
  local slot = slots.read(slot_name)
  if slot and (slot.state == 'leased' or slot.state == 'adoptable')
    and slot.attempt == attempt and slot.job == job and slot.epoch == epoch then
    return slot
  end
  return nil
end

-- As an array, for the store: the fields of `Lease` in their order, leased_at in microseconds.
function leases.reply(slot, adopted)
  return { slot.pool, slot.name, slot.job, slot.attempt, slot.epoch, slot.model, slot.tenant, slot.priority,
    slot.fence, slot.leased_us, tostring(slot.estimate), adopted and 1 or 0 }
end

-- Gives the slot to an attempt. The fence grows with every lease, also when the index was lost in between.
function leases.begin(slot, lease, lease_us)
  slot.fence = math.max(slot.fence + 1, lease.fence or now)
  slot.pool, slot.job, slot.attempt, slot.epoch = lease.pool, lease.job, lease.attempt, lease.epoch
  slot.model, slot.tenant, slot.priority = lease.model, lease.tenant, lease.priority
  slot.estimate, slot.leased_us, slot.worker = lease.estimate, lease.leased_us or now, lease.worker
  slot.host, slot.warm = lease.host, lease.model
  redis.call('HSET', key.slot(slot.name), 'warm', slot.warm, 'fence', slot.fence, 'pool', slot.pool,
    'job', slot.job, 'attempt', slot.attempt, 'epoch', slot.epoch, 'model', slot.model, 'tenant', slot.tenant,
    'priority', slot.priority, 'estimate', slot.estimate, 'leased_us', slot.leased_us, 'worker', slot.worker,
    'host', slot.host)
  if slot.state ~= 'leased' then slots.set_state(slot, 'leased') end
  redis.call('HSET', key.leases, slot.attempt, slot.name)
  redis.call('HSET', key.held, slot.job, slot.attempt)
  redis.call('ZADD', key.expiry, now + lease_us, slot.attempt)
  servers.touch((servers.of_slot(slot.name)))
end

-- Changes who is on the other end of a lease.
function leases.pass_to(slot, worker, epoch, asked)
  if slot.asked then redis.call('HDEL', key.leases, slot.asked) end
  if asked then
    redis.call('HSET', key.leases, asked, slot.name)
    redis.call('HSET', key.slot(slot.name), 'worker', worker, 'epoch', epoch, 'asked', asked)
  else
    redis.call('HSET', key.slot(slot.name), 'worker', worker, 'epoch', epoch)
    redis.call('HDEL', key.slot(slot.name), 'asked')
  end
  slot.worker, slot.epoch, slot.asked = worker, epoch, asked
end

function leases.forget_job(job, attempt)
  if redis.call('HGET', key.held, job) == attempt then redis.call('HDEL', key.held, job) end
end

-- Ends the lease in the slot; what becomes of slot and job is the caller's. Corrects the charge: `seconds` is
-- the real one, nil the time held. Kept in the slot, so that an end that is taken back is not charged twice.
function leases.finish(slot, seconds)
  seconds = seconds or (now - slot.leased_us) / 1000000
  fair.correct(slot.pool, line.band(slot.priority), slot.tenant, seconds - slot.estimate)
  slot.estimate = seconds
  redis.call('HDEL', key.leases, slot.attempt, slot.asked or slot.attempt)
  redis.call('ZREM', key.expiry, slot.attempt)
  servers.touch((servers.of_slot(slot.name)))
  return seconds
end

-- The attempt's end waits for its commit.
function leases.settle(slot, worker, seconds, lease_us)
  redis.call('HSET', key.settling(slot.attempt), 'slot', slot.name, 'job', slot.job, 'epoch', slot.epoch,
    'pool', slot.pool, 'model', slot.model, 'tenant', slot.tenant, 'worker', worker, 'seconds', seconds)
  redis.call('HSETNX', key.held, slot.job, slot.attempt)
  redis.call('ZADD', key.expiry, now + lease_us, slot.attempt)
end

function leases.read_settling(attempt)
  local field = redis.call('HMGET', key.settling(attempt), 'slot', 'job', 'epoch', 'pool', 'model', 'tenant',
    'worker', 'seconds')
  if not field[1] then return nil end
  return { slot = field[1], job = field[2], epoch = tonumber(field[3]), pool = field[4], model = field[5],
    tenant = field[6], worker = field[7], seconds = field[8] }
end

-- The end is committed, or given up: forgets it. Returns the slot if it was only waiting for that.
function leases.forget_settling(attempt, end_of)
  redis.call('DEL', key.settling(attempt))
  redis.call('ZREM', key.expiry, attempt)
  leases.forget_job(end_of.job, attempt)
  local slot = slots.read(end_of.slot)
  if slot and slot.state == 'settling' and slot.attempt == attempt then return slot end
  return nil
end

-- Nothing runs out before this: after a gap in the sweep's own ticking living keepers get time to renew.
function leases.floor() return tonumber(redis.call('HGET', key.ticking, 'floor_us')) or 0 end

function leases.is_expired(attempt)
  local expires = tonumber(redis.call('ZSCORE', key.expiry, attempt))
  return expires ~= nil and math.max(expires, leases.floor()) <= now
end
