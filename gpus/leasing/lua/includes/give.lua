-- The moment slot and ticket come together: the ticket leaves the line, its tenant is charged, the lease begins.
-- include: pick
-- include: leases
-- include: lists
-- include: forecast
-- include: caps

local FIRST_EPOCH = 1

-- Saves the pool. Returns the lease for the store. Or nil and true: look again, for the job holds a slot already, and
-- this was a second ticket of it (pushed late by somebody who knew it under another priority), which is gone now.
-- ended: as in `begin_lease`.
local function give(slot, server, pool, ticket, attempt, worker, lease_us, ended)
  local job = job_of(ticket.member)
  if redis.call('HSETNX', key('held'), job, attempt) == 0 then
    withdraw_ticket(pool, ticket.model, ticket.tenant, priority_of(ticket), job)
    forget_forecast(pool.name, job)
    save_pool(pool)
    return nil, true
  end
  local seconds, dues = take_ticket(pool, ticket)
  save_pool(pool)
  hide_slot(slot, server)
  slot.pool, slot.job, slot.attempt, slot.epoch = pool.name, job, attempt, FIRST_EPOCH
  slot.model, slot.tenant, slot.priority = ticket.model, ticket.tenant, priority_of(ticket)
  slot.band, slot.dues = ticket.queue.band, dues
  slot.estimate, slot.leased_us, slot.worker, slot.asked, slot.host = seconds, now, worker, nil, server.host
  begin_lease(slot, now, lease_us, ended)
  learn_forecast(pool.name, job)
  keep_others_back(pool.name, ticket.model, attempt)
  run_begins(slot.tenant, attempt)
  return lease_reply(slot, false)
end
