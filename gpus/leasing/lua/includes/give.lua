-- The moment slot and ticket come together: the ticket leaves the line, its tenant is charged, the lease begins.
-- include: pick
-- include: leases
-- include: lists
-- include: forecast
-- include: caps

-- Saves the pool. Returns the lease, without its slot. Or nil: look again, for the job holds a slot already, and this
-- was a second ticket of it (pushed late by somebody who knew it under another priority), which is gone now.
local function take_for(attempt, pool, ticket)
  local job = job_of(ticket.member)
  if redis.call('HSETNX', Keys.held(), job, attempt) == 0 then
    withdraw_ticket(pool, ticket.model, ticket.tenant, priority_of(ticket), job)
    forget_forecast(pool.name, job)
    save_pool(pool)
    return nil
  end
  local seconds, dues = take_ticket(pool, ticket)
  save_pool(pool)
  learn_forecast(pool.name, job)
  keep_others_back(pool.name, ticket.model, attempt)
  return {
    pool = pool.name, job = job, attempt = attempt, epoch = FIRST_EPOCH, model = ticket.model, tenant = ticket.tenant,
    priority = priority_of(ticket), band = ticket.queue.band, dues = dues, estimate = seconds, leased_us = now,
  }
end

-- The slot is the worker's under this lease; the caller begins it.
local function put_lease(slot, lease, worker, host)
  for field, value in pairs(lease) do slot[field] = value end
  slot.worker, slot.host, slot.asked = worker, host, nil
end

-- The lease that was taken begins. Returns it for the store. ended: as in `begin_lease`.
local function hold(slot, server, lease, worker, lease_us, ended)
  hide_slot(slot, server)
  put_lease(slot, lease, worker, server.host)
  begin_lease(slot, now, lease_us, ended)
  run_begins(slot.tenant, slot.attempt)
  return lease_reply(slot, false)
end

-- Both at once; or nil and true where `take_for` found none.
local function give(slot, server, pool, ticket, attempt, worker, lease_us)
  local lease = take_for(attempt, pool, ticket)
  if not lease then return nil, true end
  return hold(slot, server, lease, worker, lease_us)
end

-- What the slot of this server runs next, as `take_for` gives it; nil if nothing that may run there waits. warm: the
-- models that its worker has told, or nil. may_run: asked of the tenant whose turn it is; if it says no, nobody else goes.
local function take_next(slot, server, pool, attempt, warm, may_run)
  local class = { server.class, server.models }
  while true do
    local ticket = best_ticket(pool, class, server.name)
    if not ticket or (may_run and not may_run(ticket.tenant)) then return nil end
    ticket = prefer_warm(pool, ticket, warm or last_model(slot), class, server.name)
    if may_run and not may_run(ticket.tenant) then return nil end
    local lease = take_for(attempt, pool, ticket)
    if lease then return lease end
  end
end
