-- Assigns tickets to slots: the lease of a free slot, and the follower (prefetched job) of a busy one.
-- include: keys
-- include: call
-- include: pools
-- include: slots
-- include: availability
-- include: classes
-- include: shares
-- include: line
-- include: leases
-- include: parked
-- include: pick
-- include: forecast

-- The moment slot and ticket come together: the ticket leaves the line, its tenant is charged, the lease begins.

-- Saves the pool. Returns the lease, without its slot. Or nil: look again, for the job holds a slot already, and this
-- was a second ticket of it (pushed late by somebody who knew it under another priority), which is gone now.
local function take_for(attempt, pool, ticket)
  local job = Line.job_of(ticket.member)
  if redis.call('HSETNX', Keys.held(), job, attempt) == 0 then
    Line.withdraw_ticket(pool, ticket.model, ticket.tenant, Pick.priority_of(ticket), job)
    Forecast.forget_forecast(pool.name, job)
    Pools.save_pool(pool)
    return nil
  end
  local seconds, dues = Pick.take_ticket(pool, ticket)
  Pools.save_pool(pool)
  Forecast.learn_forecast(pool.name, job)
  Classes.keep_others_back(pool.name, ticket.model, attempt)
  return {
    pool = pool.name, job = job, attempt = attempt, epoch = Leases.FIRST_EPOCH, model = ticket.model, tenant = ticket.tenant,
    priority = Pick.priority_of(ticket), band = ticket.queue.band, dues = dues, estimate = seconds, leased_us = Call.now,
  }
end

-- The slot is the worker's under this lease; the caller begins it.
local function put_lease(slot, lease, worker, host)
  for field, value in pairs(lease) do slot[field] = value end
  slot.worker, slot.host, slot.asked = worker, host, nil
end

-- The lease that was taken begins. Returns it for the store. ended: as in `begin_lease`.
local function hold(slot, server, lease, worker, lease_us, ended)
  Availability.hide_slot(slot, server)
  put_lease(slot, lease, worker, server.host)
  Leases.begin_lease(slot, Call.now, lease_us, ended)
  Parked.run_begins(slot.tenant, slot.attempt)
  return Leases.lease_reply(slot, false)
end

-- Both at once; or nil and true where `take_for` found none.
local function give(slot, server, pool, ticket, attempt, worker, lease_us)
  local lease = take_for(attempt, pool, ticket)
  if not lease then return nil, true end
  return hold(slot, server, lease, worker, lease_us)
end

-- What the slot of this server runs next, as `take_for` gives it; nil if nothing that may run there waits. warm: the
-- models that its worker has told, or nil. may_run: asked of the tenant whose turn it is; if it says no, nobody else
-- goes.
local function take_next(slot, server, pool, attempt, warm, may_run)
  local class = { server.class, server.models }
  while true do
    local ticket = Pick.best_ticket(pool, class, server.name)
    if not ticket or (may_run and not may_run(ticket.tenant)) then return nil end
    ticket = Pick.prefer_warm(pool, ticket, warm or Pick.last_model(slot), class, server.name)
    if may_run and not may_run(ticket.tenant) then return nil end
    local lease = take_for(attempt, pool, ticket)
    if lease then return lease end
  end
end

-- What the holder of a slot runs next: its follower, claimed while the holder's run goes on, so that nobody has to be
-- asked between the two. Its ticket is out of the line and charged; the slot stays the holder's. It has no expiry of
-- its own: it begins when its worker says so, and goes with the holder's lease if it did not.

-- Nothing of it began: it costs its tenant nothing. Its job waits again once it is pushed. The caller saves the slot.
local function drop_follower(slot)
  local follower = Leases.read_follower(slot)
  if not follower then return end
  slot.follower, slot.fence = nil, math.max(slot.fence, follower.fence)
  local pool = Pools.load_pool(follower.pool)
  Shares.correct_charge(pool, follower, 0)
  Pools.save_pool(pool)
  Parked.run_ends(follower.tenant, follower.attempt)
  Leases.forget_job(follower.job, follower.attempt)
end

-- The holder's lease is over and forgotten: the follower holds the slot. since_us: from when its time counts; not
-- while it waited. ended: as in `begin_lease`.
local function begin_follower(slot, worker, host, since_us, lease_us, ended)
  local follower = Leases.read_follower(slot)
  local fence = follower.fence
  slot.follower, follower.fence, follower.leased_us = nil, nil, since_us
  put_lease(slot, follower, worker, host)
  Leases.begin_lease(slot, fence, lease_us, ended)
end

-- Whether its tenant may begin jobs now. That it runs as many as it may is no reason: the follower is one of them.
local function is_follower_held_back(pool, follower)
  local reasons = pool.parked > 0 and redis.call('HGET', Keys.parked(pool.name), follower.tenant)
  return reasons and reasons:gsub(Line.FULL, '') ~= ''
end

-- How many slots may run jobs of the tenant at once, in all pools in which it waits.
local function slots_for(tenant)
  local slots = 0
  for _, name in ipairs(redis.call('SMEMBERS', Keys.waits(tenant))) do
    for _, count in ipairs(redis.call('HVALS', Keys.states(name))) do slots = slots + tonumber(count) end
  end
  return slots
end

-- Whether a job of the tenant may be claimed ahead: it counts for the tenant's limit before it runs, and must keep no
-- free slot from a job that the limit allows. One behind another tenant's run stands for its slot; one behind a run of
-- its own tenant counts beside it, and at most half of what counts are such.
local function leaves_room(tenant, holder_tenant)
  local cap = Pools.rules_of(tenant).cap
  if not cap then return true end
  local beside = math.floor(redis.call('SCARD', Keys.running(tenant)) / 2) + (tenant == holder_tenant and 1 or 0)
  return cap >= slots_for(tenant) + beside
end

-- Whether the tenant of the run would go on waiting only until that run is over: whose turn it is then, nobody knows
-- yet.
local function frees_its_tenant(slot, pool)
  return Pools.is_full(slot.tenant) and redis.call('SISMEMBER', Keys.waits(slot.tenant), pool.name) == 1
end

-- Claims one for the holder that is leased the slot, and has none; the answer is a lease for the store. Or nil:
-- nothing that may run there waits, or less than one for each running slot, so that some other one will be free for it
-- sooner; or the server or a model failed last, or a tenant's limit decides, and what may begin is seen when the run
-- is over.
local function follow(slot, server, index, pool, attempt, warm)
  if pool.failing > 0 or not Availability.may_go_on(slot, server, index) then return nil end
  local queues = pool.queues
  local waiting = queues[1].waiting + queues[2].waiting + queues[3].waiting
  if waiting < tonumber(redis.call('HGET', Keys.states(slot.home), 'leased')) then return nil end
  if frees_its_tenant(slot, pool) then return nil end
  local follower = take_next(slot, server, pool, attempt, warm, function(tenant) return leaves_room(tenant, slot.tenant) end)
  if not follower then
    Pools.save_pool(pool)
    return nil
  end
  follower.name, follower.fence = slot.name, math.max(slot.fence + 1, Call.now)
  slot.follower = cmsgpack.pack(follower.pool, follower.job, attempt, follower.model, follower.tenant,
    follower.priority, follower.band, follower.dues, follower.estimate, follower.leased_us, follower.fence)
  Slots.save_slot(slot)
  Parked.run_begins(follower.tenant, attempt)
  return Leases.lease_reply(follower, false)
end

-- Ends a lease for good, with nothing left to commit, and its follower with it; what becomes of its slot is the
-- caller's.

local function drop_lease(slot, seconds)
  drop_follower(slot)
  local pool = Pools.load_pool(slot.pool)
  Shares.correct_charge(pool, slot, seconds)
  Pools.save_pool(pool)
  Leases.forget_lease(slot)
  Parked.run_ends(slot.tenant, slot.attempt)
  Leases.forget_job(slot.job, slot.attempt)
  redis.call('ZREM', Keys.expiry(), slot.attempt)
end

return {
  begin_follower = begin_follower, drop_follower = drop_follower, drop_lease = drop_lease, follow = follow,
  give = give, hold = hold, is_follower_held_back = is_follower_held_back, take_next = take_next,
}
