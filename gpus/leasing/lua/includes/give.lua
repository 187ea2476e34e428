-- The moment slot and ticket come together: the ticket leaves the line, its tenant is charged, the lease begins.
-- include: pick
-- include: leases

local FIRST_EPOCH = 1

local function give(slot, server, view, ticket, attempt, worker, lease_us)
  local seconds = pick.take(view, ticket)
  slots.hide(slot, server)
  leases.begin(slot, {
    pool = view.pool, job = ticket.member:sub(2), attempt = attempt, epoch = FIRST_EPOCH, model = ticket.model,
    tenant = ticket.tenant, priority = ticket.band * 3 + tonumber(ticket.member:sub(1, 1)) + 1,
    estimate = seconds, worker = worker, host = server.host,
  }, lease_us)
  return leases.reply(slot, false)
end
