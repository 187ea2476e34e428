-- Leases. A lease is kept in its slot; `leases` finds the slot by attempt, `held` the attempt by job, and `expiry`
-- says when it runs out.
-- include: keys
-- include: slots
-- include: floor

-- The slot that holds this attempt, or nil.
local function find_lease(attempt)
  local name = redis.call('HGET', Keys.leases(), attempt)
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

local FIRST_EPOCH = 1

-- What the slot's holder runs next (follow.lua), as a lease with its slot's name; nil if there is none.
local function read_follower(slot)
  if not slot.follower then return nil end
  local pool, job, attempt, model, tenant, priority, band, dues, estimate, leased_us, fence = cmsgpack.unpack(slot.follower)
  return {
    name = slot.name, pool = pool, job = job, attempt = attempt, epoch = FIRST_EPOCH, model = model, tenant = tenant,
    priority = priority, band = band, dues = dues, estimate = estimate, leased_us = leased_us, fence = fence,
  }
end

-- The slot whose follower has exactly this ref, else nil.
local function followed_under(slot_name, job, attempt, epoch)
  local slot = read_slot(slot_name)
  local follower = slot and read_follower(slot)
  local is_it = follower and follower.attempt == attempt and follower.job == job and follower.epoch == epoch
  return is_it and slot or nil
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
  local at = now + lease_us + FLEET_TIME
  if also then redis.call('ZADD', Keys.expiry(), at, attempt, at, also) else redis.call('ZADD', Keys.expiry(), at, attempt) end
end

-- Stores the lease whose fields the slot has got and whose job is `held`. The fence grows with every lease, also when
-- the index was lost in between: at_least is the clock, or what a lease that is restored had. ended: the slot's last
-- attempt, if its end waits for its commit, else nil.
local function begin_lease(slot, at_least, lease_us, ended)
  slot.fence, slot.warm = math.max(slot.fence + 1, at_least), slot.model
  slot.rest_us, slot.rests_until = nil, nil
  set_state(slot, 'leased')
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
