-- Picks the next ticket for a slot: first the band; in it the tenant with the lowest start tag (fair) or the oldest
-- ticket (fifo). Both orders are over the same lines, so that switching moves no ticket. A set of models is ',a,b,'. A
-- ticket here is {queue, name, line, model, tenant, rank, tag, member, score, first_two, is_only}; name: its line, as in
-- `models`; line: its key; rank: the tenant's tag (fair), or the score (fifo); tag: the tenant's, nil: not read; the
-- last two: see `remove_ticket`. A class: {id, models}.
-- include: keys
-- include: call
-- include: pools
-- include: slots
-- include: classes
-- include: turns
-- include: shares
-- include: line

local MAX_SKIPS = 8    -- how often a ticket is passed over: for a warm model, or because of the server
local NEAR_US = 2000000  -- how long a ticket that was passed over prefers its near server
local WALK = 8         -- tickets, lines and tenants examined for a ticket that does not avoid the server
local NEAR_SLOTS = 16  -- slots of a near server that are examined
local MAX_ASIDE = 16   -- tenants set aside per call
local WARM_TURNS = 16  -- broad tenants of the class examined for a ticket with a warm model

-- Whether a goes before b, in one queue. Ties go by tenant, and in a tenant by line, as in the zsets.
local function precedes(a, b)
  if a.rank ~= b.rank then return a.rank < b.rank end
  if a.tenant ~= b.tenant then return a.tenant < b.tenant end
  if a.score ~= b.score then return a.score < b.score end
  return a.name < b.name
end

-- The server that this ticket avoids, or nil once it was passed over too often or no other server runs its model.
local function avoided_server(pool, ticket)
  local skips, _, avoid = Line.read_mark(pool, ticket.member)
  if avoid ~= '' and skips < MAX_SKIPS and redis.call('SCARD', Keys.serving(pool.name, ticket.model)) > 1 then
    return avoid
  end
  return nil
end

-- The server that this ticket prefers because files that it needs are there; nil if it does not run the model, or the
-- ticket was passed over too often or too long ago.
local function near_server(pool, ticket)
  local skips, since_us, avoid, near = Line.read_mark(pool, ticket.member)
  if near == '' or near == avoid or skips >= MAX_SKIPS then return nil end
  if since_us > 0 and Call.now - since_us >= NEAR_US then return nil end
  if redis.call('SISMEMBER', Keys.serving(pool.name, ticket.model), near) == 0 then return nil end
  return near
end

-- A free slot of this server, which runs the model, and the host of its workers; nil if there is none. Warm slots first,
-- then the longest free of the first NEAR_SLOTS.
local function free_slot_of(pool_name, name, model)
  local server = Slots.read_server(name)
  local free = Keys.free(pool_name, server.class, server.host)
  local warm = Keys.warm(pool_name, server.class, model, server.host)
  local found, best
  for index = 0, math.min(server.top, NEAR_SLOTS) - 1 do
    local slot = name .. '/' .. index
    local since_us = tonumber(redis.call('ZSCORE', free, slot))
    if since_us and redis.call('ZSCORE', warm, slot) then return slot, server.host end
    if since_us and (not found or since_us < best) then found, best = slot, since_us end
  end
  return found, server.host
end

-- Whether the ticket should not run on this server now, if another ticket can: it avoids it, or prefers another one.
-- only_free: a server that it prefers counts only while a slot is free there.
local function is_misplaced(pool, ticket, server, only_free)
  if avoided_server(pool, ticket) == server then return true end
  local near = near_server(pool, ticket)
  if near == nil or near == server then return false end
  return not only_free or free_slot_of(pool.name, near, ticket.model) ~= nil
end

-- Counts one skip of the ticket. too_early: its tenant was not next, so that its patience does not begin.
local function skip(pool, ticket, too_early)
  local skips, since_us, avoid, near = Line.read_mark(pool, ticket.member)
  if since_us == 0 and not too_early then since_us = Call.now end
  Line.set_mark(pool, ticket.member, skips + 1, since_us, avoid, near)
end

local function key_order_of(pool, queue, model)
  return (pool.fifo and Keys.heads or Keys.turn)(queue.at, pool.only ~= model and model or nil)
end

-- The ticket at index `place` of one of the tenant's lines, or nil. tag: the tenant's start tag in a fair pool.
local function ticket_at(pool, queue, name, tenant, tag, place, is_only)
  local line = Line.named_line(pool, name, tenant)
  local found = redis.call('ZRANGE', line, place, place + 1, 'WITHSCORES')
  if not found[1] then return nil end
  local score = found[2] + 0
  return {
    queue = queue, name = name, line = line, model = name:sub(2), tenant = tenant, rank = pool.fifo and score or tag,
    tag = not pool.fifo and tag or nil, member = found[1], score = Line.own_score(pool, queue, name, score),
    first_two = place == 0 and found or nil, is_only = is_only,
  }
end

-- The first of these lines whose model is one of these, or nil.
local function first_served(lines, models)
  for _, name in ipairs(lines) do
    if Classes.serves(models, name:sub(2)) then return name end
  end
  return nil
end

-- The first broad tenant in the class's order that waits for its models, with its tag and its line. nil if none is before
-- the tenant `found`, whose tag is `best`, or if this call reached MAX_ASIDE.
local function first_broad(queue, class, found, best)
  while true do
    local first = redis.call('ZRANGE', Turns.class_order(queue, class[1]), 0, 0, 'WITHSCORES')
    local tenant, tag = first[1], tonumber(first[2])
    if not tenant or (found and (best < tag or (best == tag and found < tenant))) then return nil end
    local lines = Turns.all_lines(queue, tenant)
    local name = first_served(lines, class[2])
    if name then return tenant, tag, name end
    Call.set_asides = Call.set_asides + 1
    if Call.set_asides > MAX_ASIDE then return nil end
    Turns.set_aside(queue, class[1], tenant, tag, lines)
  end
end

-- Whether this call set aside MAX_ASIDE tenants before it found the next ticket. The next call continues behind them.
local function reached_limit() return Call.set_asides > MAX_ASIDE end

-- The first tenant in the orders of these models, and its rank; or nil.
local function first_named(pool, queue, models)
  local found, best
  for model in models:gmatch('[^,]+') do
    local first = redis.call('ZRANGE', key_order_of(pool, queue, model), 0, 0, 'WITHSCORES')
    local rank = tonumber(first[2])
    if rank and (not found or rank < best or (rank == best and first[1] < found)) then found, best = first[1], rank end
  end
  return found, best
end

-- The first ticket for the class's models, of the first tenant that has one; or nil.
local function search(pool, queue, class)
  local name
  local found, best = first_named(pool, queue, class[2])
  if queue.mixed and not pool.fifo then
    local tenant, tag, line = first_broad(queue, class, found, best)
    if tenant then found, best, name = tenant, tag, line end
  end
  if not found then return nil end
  name = name or first_served(Turns.all_lines(queue, found), class[2])
  return ticket_at(pool, queue, name, found, best, 0)
end

-- The first ticket for warm models of a slot of the class. Examines at most WARM_TURNS broad tenants.
local function search_warm(pool, queue, class, models)
  local found, best = first_named(pool, queue, models)
  local broad = {}
  if queue.mixed and not pool.fifo then
    broad = redis.call('ZRANGE', Turns.class_order(queue, class[1]), 0, WARM_TURNS - 1, 'WITHSCORES')
  end
  for i = 1, #broad, 2 do
    local tenant, tag = broad[i], tonumber(broad[i + 1])
    if found and (best < tag or (best == tag and found < tenant)) then break end
    local name = Line.first_line(queue, tenant, models)
    if name then return ticket_at(pool, queue, name, tenant, tag, 0) end
  end
  return found and ticket_at(pool, queue, Line.first_line(queue, found, models), found, best, 0)
end

-- The queue's first ticket for the class's models, or nil. Each tenant's own order is kept.
local function head_of(pool, queue, class)
  local order = pool.fifo and Keys.heads(queue.at) or Keys.turn(queue.at)
  local first = redis.call('ZRANGE', order, 0, 0, 'WITHSCORES')
  local tenant = first[1]
  if not tenant then return nil end
  local lines = redis.call('ZRANGE', Keys.models(queue.at, tenant), 0, 1)
  if not Classes.serves(class[2], lines[1]:sub(2)) then return search(pool, queue, class) end
  return ticket_at(pool, queue, lines[1], tenant, first[2] + 0, 0, not lines[2])
end

-- The first of the line's first WALK tickets that may run on the server, or nil.
local function first_of_line(pool, queue, name, tenant, tag, server, only_free)
  for place = 0, WALK - 1 do
    local one = ticket_at(pool, queue, name, tenant, tag, place)
    if not one or not is_misplaced(pool, one, server, only_free) then return one or nil end
  end
  return nil
end

-- The next ticket after a first one that is misplaced on this server, or nil. only_free: as in `is_misplaced`.
local function first_behind(pool, queue, class, server, only_free)
  local found
  local function look(name, tenant, tag)
    local one = first_of_line(pool, queue, name, tenant, tag, server, only_free)
    if one and (not found or precedes(one, found)) then found = one end
  end
  for model in class[2]:gmatch('[^,]+') do
    for _, tenant in ipairs(redis.call('ZRANGE', key_order_of(pool, queue, model), 0, WALK - 1)) do
      local tag = tonumber(redis.call('ZSCORE', Keys.turn(queue.at), tenant))
      for asked = 0, queue.band do
        if Pools.queue_of(pool, tenant, asked) == queue then look(asked .. model, tenant, tag) end
      end
    end
  end
  if pool.fifo then return found end
  local broad = redis.call('ZRANGE', Turns.class_order(queue, class[1]), 0, WALK - 1, 'WITHSCORES')
  for i = 1, #broad, 2 do
    for _, name in ipairs(redis.call('ZRANGE', Keys.models(queue.at, broad[i]), 0, 2 * WALK - 1)) do
      if Classes.serves(class[2], name:sub(2)) then look(name, broad[i], tonumber(broad[i + 1])) end
    end
  end
  return found
end

-- Whether the ticket's queue is due and goes before a higher one that has a ticket for the class's models.
local function overtakes(pool, ticket, class)
  if not Shares.is_due(ticket.queue) then return false end
  for _, queue in ipairs(pool.queues) do
    if queue.band < ticket.queue.band and queue.waiting > 0 and head_of(pool, queue, class) then return true end
  end
  return false
end

-- The ticket; or, if it would be the trial of a half-open circuit to which its tenant's failures contributed, a ticket
-- of another tenant.
local function of_another_tenant(pool, ticket)
  if not Classes.read_kept(pool.name).models[ticket.model] then return ticket end
  local circuit = Classes.read_circuit(pool, ticket.model)
  if not circuit.tenants[ticket.tenant] then return ticket end
  local tenant, queue, score = Turns.another_tenant(pool, ticket.model, circuit.tenants)
  if not tenant then return ticket end
  local line = Line.first_line(queue, tenant, ',' .. ticket.model .. ',')
  return ticket_at(pool, queue, line, tenant, score, 0)
end

-- Whether the tenant of `other` is ahead of the ticket's tenant by more than one job and the pool's patience. Without
-- this bound a tenant of always warm models would get eight jobs for each one of a tenant of cold models.
local function leads_too_far(pool, other, ticket)
  local lead = other.rank - ticket.rank - pool.patience / 1000000
  if pool.fifo or lead <= 0 then return false end
  return lead > Shares.estimated_seconds(other.model, other.tenant) / Pools.rules_of(other.tenant).weight
end

-- The queue's first ticket, or one behind it, for a slot of this server: the first one may avoid the server, or prefer
-- another. A ticket that only prefers another server is not passed over for nothing: without a ticket behind it, it runs
-- here, unless its near server is free, where a worker claims it now. nil: none.
local function placed(pool, queue, ticket, class, server)
  local avoids = avoided_server(pool, ticket) == server
  local near = not avoids and near_server(pool, ticket)
  if not avoids and (not near or near == server) then return ticket end
  local other = first_behind(pool, queue, class, server)
  if avoids then
    other = other or first_behind(pool, queue, class, server, true)
  else
    if other and leads_too_far(pool, other, ticket) then other = nil end
    if not other and not free_slot_of(pool.name, near, ticket.model) then return ticket end
  end
  skip(pool, ticket)
  return other
end

-- The next ticket for a slot of the class (with `server`: of that server), and the index of its queue in the serving
-- order. nil if there is none, or if `reached_limit`.
local function best_ticket(pool, class, server)
  local models = Classes.without_kept(pool.name, class[2])
  if models ~= class[2] then class = { class[1], models } end
  for place, queue in ipairs(Shares.queues_in_order(pool)) do
    local ticket = head_of(pool, queue, class)
    if ticket and pool.failing > 0 then ticket = of_another_tenant(pool, ticket) end
    if ticket and server and pool.marked > 0 then ticket = placed(pool, queue, ticket, class, server) end
    if ticket then ticket.overtakes = overtakes(pool, ticket, class) end
    if reached_limit() then return nil end
    if ticket then return ticket, place end
  end
  return nil
end

-- The warm model (',a,') of a slot whose worker reports none: the model that was leased there last.
local function last_model(slot) return slot.warm and ',' .. slot.warm .. ',' or ',' end

-- Whether the ticket may be passed over once more for a warm model.
local function may_wait(pool, ticket)
  local skips, since_us = Line.read_mark(pool, ticket.member)
  return skips < MAX_SKIPS and (since_us == 0 or Call.now - since_us < pool.patience)
end

-- The first ticket for these models in the own order of the ticket's tenant, unless it is the same one.
local function first_of_tenant(pool, ticket, models)
  local queue, tenant = ticket.queue, ticket.tenant
  local name = redis.call('ZRANGE', Keys.models(queue.at, tenant), 0, 0)[1]
  if not Classes.serves(models, name:sub(2)) then name = first_served(Turns.all_lines(queue, tenant), models) end
  return name ~= ticket.name and ticket_at(pool, queue, name, tenant, ticket.tag, 0) or nil
end

-- The ticket, or one of the same queue for a model that is warm on the slot (',a,b,'), because loading a model costs more
-- than a changed order. The pool's patience and MAX_SKIPS bound how long and how often a ticket is delayed.
local function prefer_warm(pool, ticket, warm, class, server)
  if pool.patience <= 0 or Classes.serves(warm, ticket.model) then return ticket end
  local models = Classes.shared_models(warm, Classes.without_kept(pool.name, class[2]))
  if models == ',' then return ticket end
  if not may_wait(pool, ticket) or (pool.marked > 0 and near_server(pool, ticket) == server) then return ticket end
  local other = search_warm(pool, ticket.queue, class, models)
  if not other or leads_too_far(pool, other, ticket) or is_misplaced(pool, other, server) then return ticket end
  local own = other.tenant ~= ticket.tenant and first_of_tenant(pool, other, class[2])
  if own then
    if not may_wait(pool, own) then return ticket end
    skip(pool, own, true)
  end
  other.overtakes = ticket.overtakes
  skip(pool, ticket)
  return other
end

-- The ticket's priority, 1 to 9.
local function priority_of(ticket) return (ticket.name:byte() - 48) * 3 + Line.level_of(ticket.member) + 1 end

-- Removes the ticket from its line and charges its tenant and its band. Returns the charge in GPU-seconds, and the
-- lease's charged_bands (shares.lua).
local function take_ticket(pool, ticket)
  local queue, tenant = ticket.queue, ticket.tenant
  local tag = ticket.tag or tonumber(redis.call('ZSCORE', Keys.turn(queue.at), tenant))
  local left = Line.remove_ticket(pool, queue, ticket.name, tenant, ticket.member, false, ticket)
  local seconds = Shares.estimated_seconds(ticket.model, tenant)
  local charged_bands = Shares.pay_bands(pool, queue, seconds, ticket.overtakes)
  Shares.pay_turn(queue, tenant, tag, seconds, Line.names_of(left))
  return seconds, charged_bands
end

return {
  avoided_server = avoided_server, best_ticket = best_ticket, free_slot_of = free_slot_of, last_model = last_model,
  near_server = near_server, precedes = precedes,
  prefer_warm = prefer_warm, priority_of = priority_of, reached_limit = reached_limit, take_ticket = take_ticket,
  MAX_SKIPS = MAX_SKIPS,
}
