-- Leases, and uncommitted ends: ends of attempts that wait for their commit in the database.
-- include: keys
-- include: call
-- include: index
-- include: slots

-- A lease is stored in its slot; `leases` maps attempts to slots, `held` jobs to attempts, and `expiry` holds the times
-- at which leases expire.

-- The slot that holds this attempt, or nil.
local function find_lease(attempt)
  local name = redis.call('HGET', Keys.leases(), attempt)
  return name and Slots.read_slot(name) or nil
end

-- Whether the slot, or nil, is held under exactly this ref (slot, job, attempt, epoch).
local function is_held_by_ref(slot, job, attempt, epoch)
  return slot and slot.attempt == attempt and slot.job == job and slot.epoch == epoch
    and (slot.state == 'leased' or slot.state == 'adoptable')
end

-- The slot if it is held under exactly this ref, else nil.
local function slot_held_by_ref(slot_name, job, attempt, epoch)
  local slot = Slots.read_slot(slot_name)
  return is_held_by_ref(slot, job, attempt, epoch) and slot or nil
end

local FIRST_EPOCH = 1

-- The slot's follower (prefetched job, assign.lua) as a lease with its slot's name, or nil.
local function read_follower(slot)
  if not slot.follower then return nil end
  local pool, job, attempt, model, tenant, priority, band, charged_bands, estimate, leased_us, fence =
    cmsgpack.unpack(slot.follower)
  return {
    name = slot.name, pool = pool, job = job, attempt = attempt, epoch = FIRST_EPOCH, model = model, tenant = tenant,
    priority = priority, band = band, charged_bands = charged_bands, estimate = estimate, leased_us = leased_us,
    fence = fence,
  }
end

-- Whether the follower of the slot, or of nil, has exactly this ref.
local function follower_matches(slot, job, attempt, epoch)
  local follower = slot and read_follower(slot)
  return follower and follower.attempt == attempt and follower.job == job and follower.epoch == epoch
end

-- Whether the worker may change the lease: it holds it, or the lease was restored from the database without a worker.
-- A lease that was handed over has no holder until it is claimed.
local function is_holder(slot, worker)
  return slot.worker == worker or (slot.worker == '' and slot.state == 'leased')
end

-- The lease as an array, for `read_lease` in gpus/leasing/codec.py; its start in microseconds.
local function lease_reply(slot, is_adopted)
  return { slot.pool, slot.name, slot.job, slot.attempt, slot.epoch, slot.model, slot.tenant, slot.priority,
    slot.fence, slot.leased_us, tostring(slot.estimate), is_adopted and 1 or 0 }
end

-- Sets when the attempt's lease, or its uncommitted end, expires. also: id of another attempt whose expiry is set too.
local function set_expiry(attempt, lease_us, also)
  local at = Index.expires_at(Call.now + lease_us)
  if also then redis.call('ZADD', Keys.expiry(), at, attempt, at, also) else redis.call('ZADD', Keys.expiry(), at, attempt) end
end

-- Sets the expiry of many attempts with one command.
local function set_expiries(attempts, lease_us)
  local at, flat = Index.expires_at(Call.now + lease_us), {}
  for i, attempt in ipairs(attempts) do flat[2 * i - 1], flat[2 * i] = at, attempt end
  if flat[1] then redis.call('ZADD', Keys.expiry(), unpack(flat)) end
end

-- Stores the lease whose fields are in the slot and whose job is in `held`. The fence grows with every lease, even after
-- a loss of the index. at_least: smallest allowed fence: the time now, or the fence of a restored lease. ended: the
-- slot's previous attempt if its end waits for its commit, else nil.
local function begin_lease(slot, at_least, lease_us, ended)
  slot.fence, slot.warm = math.max(slot.fence + 1, at_least), slot.model
  slot.rest_us, slot.rests_until = nil, nil
  Slots.set_state(slot, 'leased')
  redis.call('HSET', Keys.leases(), slot.attempt, slot.name)
  set_expiry(slot.attempt, lease_us, ended)
end

-- Passes the lease to another worker; the caller saves the slot. adopter: attempt id of the claim that adopts it, or nil.
local function pass_lease(slot, worker, epoch, adopter)
  if slot.adopter then redis.call('HDEL', Keys.leases(), slot.adopter) end
  if adopter then redis.call('HSET', Keys.leases(), adopter,  slot.name) end
  slot.worker, slot.epoch, slot.adopter = worker, epoch, adopter
end

-- Removes the lease from the map of attempts.
local function forget_lease(slot)
  redis.call('HDEL', Keys.leases(), slot.attempt)
  if slot.adopter then redis.call('HDEL', Keys.leases(), slot.adopter) end
  slot.adopter = nil
end

-- The job holds no slot any more, if this attempt held it.
local function forget_job(job, attempt)
  if redis.call('HGET', Keys.held(), job) == attempt then redis.call('HDEL', Keys.held(), job) end
end

-- Stores the attempt's uncommitted end in `settling`. It expires like a lease; the caller sets its expiry.
local function store_uncommitted_end(slot)
  redis.call('HSET', Keys.settling(), slot.attempt, cmsgpack.pack(slot.name, slot.job, slot.epoch, slot.pool,
    slot.model, slot.tenant, slot.worker, slot.estimate))
end

-- The uncommitted end of the attempt: nil, or {slot, job, epoch, pool, model, tenant, worker, seconds: the real charge}.
local function read_end(attempt)
  local packed = redis.call('HGET', Keys.settling(), attempt)
  if not packed then return nil end
  local slot, job, epoch, pool, model, tenant, worker, seconds = cmsgpack.unpack(packed)
  return {
    slot = slot, job = job, epoch = epoch, pool = pool, model = model, tenant = tenant, worker = worker,
    seconds = seconds,
  }
end

-- The uncommitted end under exactly this ref, or nil.
local function end_by_ref(slot, job, attempt, epoch)
  local found = read_end(attempt)
  if found and found.slot == slot and found.job == job and found.epoch == epoch then return found end
  return nil
end

-- Removes an end that is committed or given up. Returns the slot if it waited only for that.
local function forget_end(attempt, found)
  redis.call('HDEL', Keys.settling(), attempt)
  redis.call('ZREM', Keys.expiry(), attempt)
  forget_job(found.job, attempt)
  local slot = Slots.read_slot(found.slot)
  if slot and slot.state == 'settling' and slot.attempt == attempt then return slot end
  return nil
end

return {
  begin_lease = begin_lease, end_by_ref = end_by_ref, find_lease = find_lease, follower_matches = follower_matches,
  forget_end = forget_end, forget_job = forget_job, forget_lease = forget_lease, is_held_by_ref = is_held_by_ref,
  is_holder = is_holder, lease_reply = lease_reply, pass_lease = pass_lease, read_end = read_end,
  read_follower = read_follower, set_expiries = set_expiries, set_expiry = set_expiry,
  slot_held_by_ref = slot_held_by_ref, store_uncommitted_end = store_uncommitted_end, FIRST_EPOCH = FIRST_EPOCH,
}
