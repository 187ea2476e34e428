-- Leases and unconfirmed ends. A lease lives in its slot's hash; `leases` finds the slot by attempt, `held` the
-- attempt by job, `expiry` says when it runs out. An end that is not committed yet is packed in `settling`.
-- include: keys
-- include: time
-- include: pools
-- include: fair
-- include: slots

-- The slot that holds this attempt, or nil.
local function find_lease(attempt)
  local name = redis.call('HGET', key.leases(), attempt)
  return name and read_slot(name) or nil
end

-- The slot if it is held under exactly this ref, else nil.
local function held_under(slot_name, job, attempt, epoch)
  local slot = read_slot(slot_name)
  if slot and slot.attempt == attempt and slot.job == job and slot.epoch == epoch
    and (slot.state == 'leased' or slot.state == 'adoptable') then
    return slot
  end
  return nil
end

-- As an array, for the store: the fields of `Lease` in their order, leased_at in microseconds.
local function lease_reply(slot, adopted)
  return { slot.pool, slot.name, slot.job, slot.attempt, slot.epoch, slot.model, slot.tenant, slot.priority,
    slot.fence, slot.leased_us, tostring(slot.estimate), adopted and 1 or 0 }
end

-- Stores the lease whose fields the slot has got. The fence grows with every lease, also when the index was lost
-- in between: at_least is the clock, or what a lease that is restored had.
local function begin_lease(slot, at_least, lease_us)
  slot.fence = math.max(slot.fence + 1, at_least)
  slot.warm, slot.since_us = slot.model, now
  count_state(slot, 'leased')
  redis.call('HSET', key.slot(slot.name), 'state', 'leased', 'home', slot.home, 'warm', slot.warm,
    'fence', slot.fence, 'since_us', now, 'lease', pack_lease(slot))
  redis.call('HSET', key.leases(), slot.attempt, slot.name)
  redis.call('HSET', key.held(), slot.job, slot.attempt)
  redis.call('ZADD', key.expiry(), now + lease_us, slot.attempt)
end

-- Changes who is on the other end of a lease.
local function pass_lease(slot, worker, epoch, asked)
  if slot.asked then redis.call('HDEL', key.leases(), slot.asked) end
  if asked then redis.call('HSET', key.leases(), asked, slot.name) end
  slot.worker, slot.epoch, slot.asked = worker, epoch, asked
  write_lease(slot)
end

local function forget_job(job, attempt)
  if redis.call('HGET', key.held(), job) == attempt then redis.call('HDEL', key.held(), job) end
end

-- Nobody can find the lease by its attempt any more.
local function forget_lease(slot)
  redis.call('HDEL', key.leases(), slot.attempt)
  if slot.asked then redis.call('HDEL', key.leases(), slot.asked) end
  slot.asked = nil
end

-- Corrects the charge: `seconds` is the real one, nil the time held; returns it. Kept in the slot, so that an end
-- that is taken back is not charged twice. pool: the lease's, to be saved by the caller.
local function correct_charge(pool, slot, seconds)
  seconds = seconds or (now - slot.leased_us) / 1000000
  correct_turn(queue_of(pool, slot.priority), slot.tenant, seconds - slot.estimate)
  slot.estimate = seconds
  return seconds
end

-- Ends a lease for good; what becomes of its slot is the caller's.
local function drop_lease(slot, seconds)
  local pool = load_pool(slot.pool)
  correct_charge(pool, slot, seconds)
  save_pool(pool)
  forget_lease(slot)
  forget_job(slot.job, slot.attempt)
  redis.call('ZREM', key.expiry(), slot.attempt)
end

-- The attempt's end waits for its commit.
local function settle(slot, worker, lease_us)
  redis.call('HSET', key.settling(), slot.attempt, cmsgpack.pack(slot.name, slot.job, slot.epoch, slot.pool,
    slot.model, slot.tenant, worker, slot.estimate))
  redis.call('ZADD', key.expiry(), now + lease_us, slot.attempt)
end

-- nil, or an unconfirmed end. seconds: its real charge.
local function read_end(attempt)
  local packed = redis.call('HGET', key.settling(), attempt)
  if not packed then return nil end
  local slot, job, epoch, pool, model, tenant, worker, seconds = cmsgpack.unpack(packed)
  return {
    slot = slot, job = job, epoch = epoch, pool = pool, model = model, tenant = tenant, worker = worker,
    seconds = seconds,
  }
end

-- The unconfirmed end under exactly this ref, or nil.
local function end_under(slot, job, attempt, epoch)
  local found = read_end(attempt)
  if found and found.slot == slot and found.job == job and found.epoch == epoch then return found end
  return nil
end

-- The end is committed, or given up: forgets it. Returns the slot if it was only waiting for that.
local function forget_end(attempt, found)
  redis.call('HDEL', key.settling(), attempt)
  redis.call('ZREM', key.expiry(), attempt)
  forget_job(found.job, attempt)
  local slot = read_slot(found.slot)
  if slot and slot.state == 'settling' and slot.attempt == attempt then return slot end
  return nil
end

-- Nothing runs out before this: after a gap in the sweep's own ticking living keepers get time to renew.
local function expiry_floor() return tonumber(redis.call('HGET', key.ticking(), 'floor_us')) or 0 end

-- Whoever claims next goes on with the attempt.
local function make_adoptable(slot)
  redis.call('ZREM', key.expiry(), slot.attempt)
  set_state(slot, 'adoptable')
  show_slot(slot, server_of(slot.name))
end

-- An adoptable lease has a holder again.
local function unmake_adoptable(slot)
  hide_slot(slot, server_of(slot.name))
  set_state(slot, 'leased')
end
