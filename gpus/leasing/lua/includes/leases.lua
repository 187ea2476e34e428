-- Leases, and ends that wait for their commit.
-- include: keys
-- include: call
-- include: index
-- include: slots

-- Leases. A lease is kept in its slot; `leases` finds the slot by attempt, `held` the attempt by job, and `expiry`
-- says when it runs out.

-- The slot that holds this attempt, or nil.
local function find_lease(attempt)
  local name = redis.call('HGET', Keys.leases(), attempt)
  return name and Slots.read_slot(name) or nil
end

-- Whether the slot, or nil, is held under exactly this ref.
local function is_under(slot, job, attempt, epoch)
  return slot and slot.attempt == attempt and slot.job == job and slot.epoch == epoch
    and (slot.state == 'leased' or slot.state == 'adoptable')
end

-- The slot if it is held under exactly this ref, else nil.
local function held_under(slot_name, job, attempt, epoch)
  local slot = Slots.read_slot(slot_name)
  return is_under(slot, job, attempt, epoch) and slot or nil
end

local FIRST_EPOCH = 1

-- What the slot's holder runs next (assign.lua), as a lease with its slot's name; nil if there is none.
local function read_follower(slot)
  if not slot.follower then return nil end
  local pool, job, attempt, model, tenant, priority, band, dues, estimate, leased_us, fence = cmsgpack.unpack(slot.follower)
  return {
    name = slot.name, pool = pool, job = job, attempt = attempt, epoch = FIRST_EPOCH, model = model, tenant = tenant,
    priority = priority, band = band, dues = dues, estimate = estimate, leased_us = leased_us, fence = fence,
  }
end

-- Whether the follower of the slot, or of nil, has exactly this ref.
local function is_followed_under(slot, job, attempt, epoch)
  local follower = slot and read_follower(slot)
  return follower and follower.attempt == attempt and follower.job == job and follower.epoch == epoch
end

-- Whether the worker may speak for the lease: it holds it, or nobody does since it was restored from the database.
-- One that was handed over is nobody's until it is claimed.
local function is_holder(slot, worker)
  return slot.worker == worker or (slot.worker == '' and slot.state == 'leased')
end

-- As an array, for the store: the fields of `Lease` in their order, leased_at in microseconds.
local function lease_reply(slot, is_adopted)
  return { slot.pool, slot.name, slot.job, slot.attempt, slot.epoch, slot.model, slot.tenant, slot.priority,
    slot.fence, slot.leased_us, tostring(slot.estimate), is_adopted and 1 or 0 }
end

-- also: another attempt, or nil.
local function extend_lease(attempt, lease_us, also)
  local at = Index.expires_at(Call.now + lease_us)
  if also then redis.call('ZADD', Keys.expiry(), at, attempt, at, also) else redis.call('ZADD', Keys.expiry(), at, attempt) end
end

local function extend_leases(attempts, lease_us)
  local at, flat = Index.expires_at(Call.now + lease_us), {}
  for i, attempt in ipairs(attempts) do flat[2 * i - 1], flat[2 * i] = at, attempt end
  if flat[1] then redis.call('ZADD', Keys.expiry(), unpack(flat)) end
end

-- Stores the lease whose fields the slot has got and whose job is `held`. The fence grows with every lease, also when
-- the index was lost in between: at_least is the clock, or what a lease that is restored had. ended: the slot's last
-- attempt, if its end waits for its commit, else nil.
local function begin_lease(slot, at_least, lease_us, ended)
  slot.fence, slot.warm = math.max(slot.fence + 1, at_least), slot.model
  slot.rest_us, slot.rests_until = nil, nil
  Slots.set_state(slot, 'leased')
  redis.call('HSET', Keys.leases(), slot.attempt, slot.name)
  extend_lease(slot.attempt, lease_us, ended)
end

-- Changes who is on the other end of a lease; the caller saves the slot.
local function pass_lease(slot, worker, epoch, asked)
  if slot.asked then redis.call('HDEL', Keys.leases(), slot.asked) end
  if asked then redis.call('HSET', Keys.leases(), asked, slot.name) end
  slot.worker, slot.epoch, slot.asked = worker, epoch, asked
end

-- Nobody can find the lease by its attempt any more.
local function forget_lease(slot)
  redis.call('HDEL', Keys.leases(), slot.attempt)
  if slot.asked then redis.call('HDEL', Keys.leases(), slot.asked) end
  slot.asked = nil
end

local function forget_job(job, attempt)
  if redis.call('HGET', Keys.held(), job) == attempt then redis.call('HDEL', Keys.held(), job) end
end

-- The attempt's end waits for its commit: packed in `settling`, with an expiry like a lease's, which the caller
-- extends.

local function settle(slot)
  redis.call('HSET', Keys.settling(), slot.attempt, cmsgpack.pack(slot.name, slot.job, slot.epoch, slot.pool,
    slot.model, slot.tenant, slot.worker, slot.estimate))
end

-- Ends that wait for their commit.

-- nil, or {slot, job, epoch, pool, model, tenant, worker, seconds}; seconds: its real charge.
local function read_end(attempt)
  local packed = redis.call('HGET', Keys.settling(), attempt)
  if not packed then return nil end
  local slot, job, epoch, pool, model, tenant, worker, seconds = cmsgpack.unpack(packed)
  return {
    slot = slot, job = job, epoch = epoch, pool = pool, model = model, tenant = tenant, worker = worker,
    seconds = seconds,
  }
end

-- The end under exactly this ref, or nil.
local function end_under(slot, job, attempt, epoch)
  local found = read_end(attempt)
  if found and found.slot == slot and found.job == job and found.epoch == epoch then return found end
  return nil
end

-- The end is committed, or given up: forgets it. Returns the slot if it was only waiting for that.
local function forget_end(attempt, found)
  redis.call('HDEL', Keys.settling(), attempt)
  redis.call('ZREM', Keys.expiry(), attempt)
  forget_job(found.job, attempt)
  local slot = Slots.read_slot(found.slot)
  if slot and slot.state == 'settling' and slot.attempt == attempt then return slot end
  return nil
end

return {
  begin_lease = begin_lease, end_under = end_under, extend_lease = extend_lease, extend_leases = extend_leases,
  find_lease = find_lease, forget_end = forget_end, forget_job = forget_job, forget_lease = forget_lease,
  held_under = held_under, is_followed_under = is_followed_under, is_holder = is_holder, is_under = is_under,
  lease_reply = lease_reply, pass_lease = pass_lease, read_end = read_end, read_follower = read_follower,
  settle = settle, FIRST_EPOCH = FIRST_EPOCH,
}
