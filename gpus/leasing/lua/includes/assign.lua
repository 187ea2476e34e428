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
-- include: running
-- include: pick
-- include: forecast

-- Dispatch: the ticket leaves the line, its tenant is charged, and the lease begins.

-- Counts where a ticket that prefers a server is placed: on it, elsewhere at once, or elsewhere after it was passed over.
local function count_placed(pool, ticket, server)
  local skips, _, _, near = Line.read_mark(pool, ticket.member)
  if near == '' then return end
  redis.call('HINCRBY', Keys.placed(pool.name), near == server and 'near' or skips > 0 and 'gave_up' or 'elsewhere', 1)
end

-- Saves the pool. Returns the lease, without its slot. Or nil: the job already holds a slot; this duplicate ticket
-- (pushed late under another priority) is deleted, and the caller searches again.
local function take_ticket_for(attempt, pool, ticket, server)
  local job = Line.job_of(ticket.member)
  if redis.call('HSETNX', Keys.held(), job, attempt) == 0 then
    Line.withdraw_ticket(pool, ticket.model, ticket.tenant, Pick.priority_of(ticket), job)
    Forecast.forget_forecast(pool.name, job)
    Pools.save_pool(pool)
    return nil
  end
  count_placed(pool, ticket, server.name)
  local seconds, charged_bands = Pick.take_ticket(pool, ticket)
  Pools.save_pool(pool)
  Forecast.learn_forecast(pool.name, job)
  Classes.begin_trial(pool.name, ticket.model, attempt)
  return {
    pool = pool.name, job = job, attempt = attempt, epoch = Leases.FIRST_EPOCH, model = ticket.model, tenant = ticket.tenant,
    priority = Pick.priority_of(ticket), band = ticket.queue.band, charged_bands = charged_bands, estimate = seconds,
    leased_us = Call.now,
  }
end

-- Writes the lease's fields into the slot; the caller begins the lease.
local function put_lease(slot, lease, worker, host)
  for field, value in pairs(lease) do slot[field] = value end
  slot.worker, slot.host, slot.adopter = worker, host, nil
end

-- Begins a lease of `take_ticket_for` on the slot. Returns it as a reply. ended: as in `begin_lease`.
local function occupy(slot, server, lease, worker, lease_us, ended)
  Availability.hide_slot(slot, server)
  put_lease(slot, lease, worker, server.host)
  Leases.begin_lease(slot, Call.now, lease_us, ended)
  Running.run_begins(slot.tenant, slot.attempt)
  return Leases.lease_reply(slot, false)
end

-- Takes the ticket and begins its lease on the slot; or nil and true if `take_ticket_for` returned nil.
local function lease_ticket(slot, server, pool, ticket, attempt, worker, lease_us)
  local lease = take_ticket_for(attempt, pool, ticket, server)
  if not lease then return nil, true end
  return occupy(slot, server, lease, worker, lease_us)
end

-- The lease of the next job for the slot of this server (`take_ticket_for`); nil if no ticket may run there. warm: the
-- models that its worker reported, or nil. may_run: called with the next tenant; if it returns false, no other tenant
-- gets the slot instead.
local function take_next(slot, server, pool, attempt, warm, may_run)
  local class = { server.class, server.models }
  while true do
    local ticket = Pick.best_ticket(pool, class, server.name)
    if not ticket or (may_run and not may_run(ticket.tenant)) then return nil end
    ticket = Pick.prefer_warm(pool, ticket, warm or Pick.last_model(slot), class, server.name)
    if may_run and not may_run(ticket.tenant) then return nil end
    local lease = take_ticket_for(attempt, pool, ticket, server)
    if lease then return lease end
  end
end

-- The follower: a slot's prefetched next job, claimed while the holder's job still runs, so that the worker needs no
-- round trip between the two. Its ticket has left the line and is charged; the slot stays the holder's. It has no
-- expiry of its own: it begins when its worker releases the holder, or ends with the holder's lease.

-- Drops a follower that has not begun, without a charge. Its job waits again once it is pushed. The caller saves the
-- slot.
local function drop_follower(slot)
  local follower = Leases.read_follower(slot)
  if not follower then return end
  slot.follower, slot.fence = nil, math.max(slot.fence, follower.fence)
  local pool = Pools.load_pool(follower.pool)
  Shares.correct_charge(pool, follower, 0)
  Pools.save_pool(pool)
  Running.run_ends(follower.tenant, follower.attempt)
  Leases.forget_job(follower.job, follower.attempt)
end

-- After the holder's lease has ended, the follower holds the slot. since_us: when its run began; waiting as a follower
-- is not charged. ended: as in `begin_lease`.
local function begin_follower(slot, worker, host, since_us, lease_us, ended)
  local follower = Leases.read_follower(slot)
  local fence = follower.fence
  slot.follower, follower.fence, follower.leased_us = nil, nil, since_us
  put_lease(slot, follower, worker, host)
  Leases.begin_lease(slot, fence, lease_us, ended)
end

-- Whether the follower's tenant is parked for a reason other than max_running (the follower counts there already).
local function is_follower_held_back(pool, follower)
  local reasons = pool.parked > 0 and redis.call('HGET', Keys.parked(pool.name), follower.tenant)
  return reasons and reasons:gsub(Line.AT_MAX_RUNNING, '') ~= ''
end

-- The number of slots in all pools in which the tenant waits.
local function slots_for(tenant)
  local slots = 0
  for _, name in ipairs(redis.call('SMEMBERS', Keys.waits(tenant))) do
    for _, count in ipairs(redis.call('HVALS', Keys.states(name))) do slots = slots + tonumber(count) end
  end
  return slots
end

-- Whether a job of the tenant may be prefetched. A prefetched job counts towards max_running before it runs. So prefetch
-- only if the tenant could use all its slots even with these extra counts. Extra: half of its counted leases, because at
-- most half are followers; plus one if the holder's job is its own.
local function may_prefetch_for(tenant, holder_tenant)
  local max_running = Pools.rules_of(tenant).max_running
  if not max_running then return true end
  local extra = math.floor(redis.call('SCARD', Keys.running(tenant)) / 2) + (tenant == holder_tenant and 1 or 0)
  return max_running >= slots_for(tenant) + extra
end

-- Whether the end of this job brings its tenant below max_running. Then that tenant may be next, so do not choose now.
local function unblocks_its_tenant(slot, pool)
  return Pools.is_at_max_running(slot.tenant) and redis.call('SISMEMBER', Keys.waits(slot.tenant), pool.name) == 1
end

-- Claims a follower for the slot's holder, which has none. Returns its lease as a reply, or nil. Then the next job is
-- chosen when the holder's job has ended. Reasons for nil:
-- - the server or a model of the pool failed last;
-- - fewer tickets wait than slots run: another slot is free sooner;
-- - max_running decides: of the holder's tenant, or of the next one.
local function claim_follower(slot, server, slot_number, pool, attempt, warm)
  if pool.failing > 0 or not Availability.may_continue(slot, server, slot_number) then return nil end
  local queues = pool.queues
  local waiting = queues[1].waiting + queues[2].waiting + queues[3].waiting
  if waiting < tonumber(redis.call('HGET', Keys.states(slot.home), 'leased')) then return nil end
  if unblocks_its_tenant(slot, pool) then return nil end
  local follower = take_next(slot, server, pool, attempt, warm, function(tenant) return may_prefetch_for(tenant, slot.tenant) end)
  if not follower then
    Pools.save_pool(pool)
    return nil
  end
  follower.name, follower.fence = slot.name, math.max(slot.fence + 1, Call.now)
  slot.follower = cmsgpack.pack(follower.pool, follower.job, attempt, follower.model, follower.tenant,
    follower.priority, follower.band, follower.charged_bands, follower.estimate, follower.leased_us, follower.fence)
  Slots.save_slot(slot)
  Running.run_begins(follower.tenant, attempt)
  return Leases.lease_reply(follower, false)
end

-- Ends a lease without an end to commit, and drops its follower. The caller decides the slot's next state.
local function drop_lease(slot, seconds)
  drop_follower(slot)
  local pool = Pools.load_pool(slot.pool)
  Shares.correct_charge(pool, slot, seconds)
  Pools.save_pool(pool)
  Leases.forget_lease(slot)
  Running.run_ends(slot.tenant, slot.attempt)
  Leases.forget_job(slot.job, slot.attempt)
  redis.call('ZREM', Keys.expiry(), slot.attempt)
end

return {
  begin_follower = begin_follower, drop_follower = drop_follower, drop_lease = drop_lease, claim_follower = claim_follower,
  lease_ticket = lease_ticket, occupy = occupy, is_follower_held_back = is_follower_held_back, take_next = take_next,
}
