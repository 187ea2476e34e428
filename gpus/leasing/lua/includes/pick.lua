-- Which ticket goes next to a slot. The band first; in it the tenant whose turn it is (fair) or who has the oldest
-- ticket (fifo), both read from the same lines, so that switching moves nothing. A set of models is written ',a,b,'.
-- A ticket here is {queue, name, model, tenant, rank, tag, member, score, after, is_only}; name: its line, as in
-- `models`; rank: the tenant's tag (fair), or the score (fifo); tag: the tenant's, nil: not read; the last two: see
-- `remove_ticket`.
-- include: keys
-- include: line
-- include: marks
-- include: kept

local MAX_SKIPS = 8    -- how often a ticket is passed over, for a warm model or for the server it avoids
local WALK = 8         -- how far behind the head to look for a ticket that does not avoid the server
local WARM_TURNS = 16  -- turns of broad tenants among which a ticket for the warm model is looked for

local function serves(models, model) return models:find(',' .. model .. ',', 1, true) ~= nil end

-- Whether a goes before b, in one queue. Ties go by tenant, and in a tenant by line, as in the zsets.
local function precedes(a, b)
  if a.rank ~= b.rank then return a.rank < b.rank end
  if a.tenant ~= b.tenant then return a.tenant < b.tenant end
  if a.score ~= b.score then return a.score < b.score end
  return a.name < b.name
end

-- The server that this ticket should not go to, as long as it may still be passed over and another one could
-- take it.
local function avoided_server(pool, ticket)
  local skips, _, avoid = read_mark(pool, ticket.member)
  if avoid ~= '' and skips < MAX_SKIPS and redis.call('SCARD', key('serving', pool.name, ticket.model)) > 1 then
    return avoid
  end
  return nil
end

local function skip(pool, ticket)
  local skips, since_us, avoid = read_mark(pool, ticket.member)
  set_mark(pool, ticket.member, skips + 1, skips == 0 and now or since_us, avoid)
end

local function key_order_of(pool, queue, model)
  return key(pool.fifo and 'heads' or 'turn', queue.at, pool.only ~= model and model or nil)
end

-- The ticket at `place` (0: the first) of one of the tenant's lines, or nil. tag: the tenant's in a fair pool.
local function ticket_at(pool, queue, name, tenant, tag, place, is_only)
  local found = redis.call('ZRANGE', named_line(pool, name, tenant), place, place + 1, 'WITHSCORES')
  local score = tonumber(found[2])
  return score and {
    queue = queue, name = name, model = name:sub(2), tenant = tenant, rank = pool.fifo and score or tag,
    tag = not pool.fifo and tag or nil, member = found[1], score = own_score(pool, queue, name, score),
    after = place == 0 and { found[3], found[4] } or nil, is_only = is_only,
  }
end

-- The first one, in its tenant's own order, of the tenant's lines for these models.
local function first_served(queue, tenant, models)
  for _, name in ipairs(redis.call('ZRANGE', key('models', queue.at, tenant), 0, -1)) do
    if serves(models, name:sub(2)) then return name end
  end
  return nil
end

-- The first of the broad tenants that waits for one model, or for one of several, its tag and its line; nil if that
-- is behind the tenant `found`, whose tag is `best`. most: turns to look at.
local function search_broad(queue, model, models, found, best, most)
  for from = 0, most - 1, WALK do
    local some = redis.call('ZRANGE', key('broad', queue.at), from, from + WALK - 1, 'WITHSCORES')
    for i = 1, #some, 2 do
      local tenant, tag = some[i], tonumber(some[i + 1])
      if found and (best < tag or (best == tag and found < tenant)) then return nil end
      local name
      if model then name = first_of_model(queue, tenant, model) else name = first_served(queue, tenant, models) end
      if name then return tenant, tag, name end
    end
    if #some < 2 * WALK then return nil end
  end
  return nil
end

-- The first ticket for the models, of the first tenant that waits for one of them, or nil.
local function search(pool, queue, models)
  local found, best, name
  for model in models:gmatch('[^,]+') do
    local first = redis.call('ZRANGE', key_order_of(pool, queue, model), 0, 0, 'WITHSCORES')
    local rank = tonumber(first[2])
    if rank and (not found or rank < best or (rank == best and first[1] < found)) then
      found, best = first[1], rank
    end
  end
  if queue.mixed and not pool.fifo then
    local tenant, tag, line = search_broad(queue, nil, models, found, best, math.huge)
    if tenant then found, best, name = tenant, tag, line end
  end
  if not found then return nil end
  return ticket_at(pool, queue, name or first_served(queue, found, models), found, best, 0)
end

-- The same for one model that a slot would like; not looked for in all turns of broad tenants.
local function search_warm(pool, queue, model)
  local first, name = redis.call('ZRANGE', key_order_of(pool, queue, model), 0, 0, 'WITHSCORES'), nil
  local found, best = first[1], tonumber(first[2])
  if queue.mixed and not pool.fifo then
    local tenant, tag, line = search_broad(queue, model, nil, found, best, WARM_TURNS)
    if tenant then found, best, name = tenant, tag, line end
  end
  if not found then return nil end
  return ticket_at(pool, queue, name or first_of_model(queue, found, model), found, best, 0)
end

-- The queue's head among tickets of these models, or nil. No tenant's own order is ever passed over for that.
local function head_of(pool, queue, models)
  local order = pool.fifo and key('heads', queue.at) or key('turn', queue.at)
  local first = redis.call('ZRANGE', order, 0, 0, 'WITHSCORES')
  local tenant = first[1]
  if not tenant then return nil end
  local lines = redis.call('ZRANGE', key('models', queue.at, tenant), 0, 1)
  if not serves(models, lines[1]:sub(2)) then return search(pool, queue, models) end
  return ticket_at(pool, queue, lines[1], tenant, tonumber(first[2]), 0, not lines[2])
end

-- The first ticket of one of the tenant's lines that does not avoid the server, not too far behind.
local function first_of_line(pool, queue, name, tenant, tag, server)
  for place = 0, WALK - 1 do
    local one = ticket_at(pool, queue, name, tenant, tag, place)
    if not one or avoided_server(pool, one) ~= server then return one or nil end
  end
  return nil
end

-- The next ticket behind a head that avoids this server.
local function behind(pool, queue, models, server)
  local found
  local function look(name, tenant, tag)
    local one = first_of_line(pool, queue, name, tenant, tag, server)
    if one and (not found or precedes(one, found)) then found = one end
  end
  for model in models:gmatch('[^,]+') do
    for _, tenant in ipairs(redis.call('ZRANGE', key_order_of(pool, queue, model), 0, WALK - 1)) do
      local tag = tonumber(redis.call('ZSCORE', key('turn', queue.at), tenant))
      for asked = 0, queue.band do
        if queue_of(pool, tenant, asked) == queue then look(asked .. model, tenant, tag) end
      end
    end
  end
  if pool.fifo then return found end
  local broad = redis.call('ZRANGE', key('broad', queue.at), 0, WALK - 1, 'WITHSCORES')
  for i = 1, #broad, 2 do
    for _, name in ipairs(redis.call('ZRANGE', key('models', queue.at, broad[i]), 0, 2 * WALK - 1)) do
      if serves(models, name:sub(2)) then look(name, broad[i], tonumber(broad[i + 1])) end
    end
  end
  return found
end

-- Whether the ticket's queue, which is due, goes before a higher one that has a ticket for these models.
local function overtakes(pool, ticket, models)
  if not is_due(ticket.queue) then return false end
  for _, queue in ipairs(pool.queues) do
    if queue.band < ticket.queue.band and queue.waiting > 0 and head_of(pool, queue, models) then return true end
  end
  return false
end

-- The next ticket for a slot that runs these models; on a given server, one that does not avoid it. Also the
-- place of its queue in the order.
local function best_ticket(pool, models, server)
  models = without_kept(pool.name, models)
  for place, queue in ipairs(queues_in_order(pool)) do
    local ticket = head_of(pool, queue, models)
    if ticket and server and avoided_server(pool, ticket) == server then
      local other = behind(pool, queue, models, server)
      skip(pool, ticket)
      ticket = other
    end
    if ticket then
      ticket.overtakes = overtakes(pool, ticket, models)
      return ticket, place
    end
  end
  return nil
end

-- The ticket, or one of the same queue for the model that is warm on the slot: loading a model costs more than a
-- turn, but what could go now is delayed by that only so long, and only so often.
local function prefer_warm(pool, ticket, warm, models, server)
  models = without_kept(pool.name, models)
  if pool.patience <= 0 or not warm or warm == ticket.model or not serves(models, warm) then return ticket end
  local skips, since_us = read_mark(pool, ticket.member)
  if skips >= MAX_SKIPS or (skips > 0 and now - since_us >= pool.patience) then return ticket end
  local other = search_warm(pool, ticket.queue, warm)
  if not other or avoided_server(pool, other) == server then return ticket end
  other.overtakes = ticket.overtakes
  skip(pool, ticket)
  return other
end

local function priority_of(ticket) return tonumber(ticket.name:sub(1, 1)) * 3 + level_of(ticket.member) + 1 end

-- Takes the ticket out of the line and charges its tenant and its band; returns the charge in GPU-seconds, and the
-- lease's dues.
local function take_ticket(pool, ticket)
  local queue, tenant = ticket.queue, ticket.tenant
  local tag = ticket.tag or tonumber(redis.call('ZSCORE', key('turn', queue.at), tenant))
  local left = remove_ticket(pool, queue, ticket.name, tenant, ticket.member, false, ticket)
  local seconds = estimated_seconds(ticket.model, tenant)
  local dues = pay_bands(pool, queue, seconds, ticket.overtakes)
  pay_turn(queue, tenant, tag, seconds, names_of(left))
  return seconds, dues
end
