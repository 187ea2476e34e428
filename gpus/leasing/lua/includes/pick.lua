-- Which ticket goes next to a slot. The band first; in it the tenant whose turn it is (fair) or the oldest ticket
-- (fifo), both read from the same lines, so that switching moves nothing. A set of models is written ',a,b,'.
-- include: keys
-- include: time
-- include: line
-- include: fair
-- include: estimate
local pick = {}

local BAND_WAITS = 15  -- dispatches (jobs, not seconds) of higher bands that a waiting band lets pass
local MAX_SKIPS = 8    -- how often a ticket is passed over, for a warm model or for the server it avoids
local WALK = 8         -- how far behind the head to look for a ticket that does not avoid the server

function pick.serves(models, model) return models:find(',' .. model .. ',', 1, true) ~= nil end

-- The pool's rules, and its bands with tickets in the order in which they are served now.
function pick.view(pool)
  local depth = redis.call('HMGET', key.depth(pool), '0', '1', '2')
  local rules = redis.call('HMGET', key.pool(pool), 'algorithm', 'patience_us', 'passed:1', 'passed:2')
  local due, others = {}, {}
  for band = 0, 2 do
    if (tonumber(depth[band + 1]) or 0) > 0 then
      local passed = band > 0 and tonumber(rules[band + 2]) or 0
      local group = passed >= BAND_WAITS and due or others
      group[#group + 1] = band
    end
  end
  for _, band in ipairs(others) do due[#due + 1] = band end
  return { pool = pool, fifo = rules[1] == 'fifo', patience = tonumber(rules[2]) or 30000000, bands = due }
end

-- Whether a goes before b, in one band. Ties go by tenant, as in the zsets.
local function precedes(a, b)
  if a.rank ~= b.rank then return a.rank < b.rank end
  if a.tenant ~= b.tenant then return a.tenant < b.tenant end
  return a.score < b.score
end

-- How often the ticket was skipped, and the server it avoids.
local function read_mark(view, ticket)
  if ticket.skips then return end
  local mark = redis.call('HGET', key.marks(view.pool), ticket.member)
  local skips, avoid = (mark or '0:'):match('^(%d+):(.*)$')
  ticket.skips, ticket.avoid = tonumber(skips), avoid ~= '' and avoid
end

-- The server that this ticket should not go to, as long as it may still be passed over and another one could
-- take it.
function pick.avoided(view, ticket)
  read_mark(view, ticket)
  if ticket.avoid and ticket.skips < MAX_SKIPS then
    if redis.call('SCARD', key.serving(view.pool, ticket.model)) > 1 then return ticket.avoid end
  end
  return nil
end

local function skip(view, ticket)
  read_mark(view, ticket)
  redis.call('HSET', key.marks(view.pool), ticket.member, ticket.skips + 1 .. ':' .. (ticket.avoid or ''))
end

local function order_of(view, band, model)
  return view.fifo and key.heads_of(view.pool, band, model) or key.turn_of(view.pool, band, model)
end

-- The first tenant that waits for one of the models, and its first such model.
local function search(view, band, models)
  local found
  for model in models:gmatch('[^,]+') do
    local first = redis.call('ZRANGE', order_of(view, band, model), 0, 0, 'WITHSCORES')
    if first[1] then
      local rank = tonumber(first[2])
      local score = view.fifo and rank
        or tonumber(redis.call('ZSCORE', key.models(view.pool, band, first[1]), model))
      local one = { band = band, model = model, tenant = first[1], rank = rank, score = score }
      if not found or precedes(one, found) then found = one end
    end
  end
  return found
end

-- The band's head among tickets of these models, or nil.
local function head(view, band, models)
  local order = view.fifo and key.heads(view.pool, band) or key.turn(view.pool, band)
  local first = redis.call('ZRANGE', order, 0, 0, 'WITHSCORES')
  if not first[1] then return nil end
  local model = redis.call('ZRANGE', key.models(view.pool, band, first[1]), 0, 0)[1]
  local ticket
  if pick.serves(models, model) then
    ticket = { band = band, model = model, tenant = first[1], rank = tonumber(first[2]) }
  else
    ticket = search(view, band, models)
    if not ticket then return nil end
  end
  local found = redis.call('ZRANGE', key.line(view.pool, band, ticket.model, ticket.tenant), 0, 0, 'WITHSCORES')
  ticket.member, ticket.score = found[1], tonumber(found[2])
  return ticket
end

-- The next ticket behind a head that avoids this server.
local function behind(view, band, models, server)
  local found
  for model in models:gmatch('[^,]+') do
    local tenants = redis.call('ZRANGE', order_of(view, band, model), 0, WALK - 1, 'WITHSCORES')
    for t = 1, #tenants, 2 do
      local tickets = redis.call('ZRANGE', key.line(view.pool, band, model, tenants[t]), 0, WALK - 1, 'WITHSCORES')
      for i = 1, #tickets, 2 do
        local score = tonumber(tickets[i + 1])
        local one = { band = band, model = model, tenant = tenants[t], member = tickets[i], score = score }
        one.rank = view.fifo and score or tonumber(tenants[t + 1])
        if pick.avoided(view, one) ~= server then
          if not found or precedes(one, found) then found = one end
          break
        end
      end
    end
  end
  return found
end

-- The next ticket for a slot that runs these models; on a given server, one that does not avoid it.
function pick.best(view, models, server)
  for place, band in ipairs(view.bands) do
    local ticket = head(view, band, models)
    if ticket and server and pick.avoided(view, ticket) == server then
      skip(view, ticket)
      ticket = behind(view, band, models, server)
    end
    if ticket then
      ticket.place = place
      return ticket
    end
  end
  return nil
end

-- Whether a, the best ticket for one class of servers, goes before b, the best for another.
function pick.goes_before(a, b)
  if a.place ~= b.place then return a.place < b.place end
  return precedes(a, b)
end

-- The ticket, or one of the same band for the model that is warm on the slot: loading a model costs more than a
-- turn, but the head waits only so long for that.
function pick.prefer_warm(view, ticket, warm, models, server, head_start_us)
  if not warm or warm == ticket.model or not pick.serves(models, warm) then return ticket end
  local stood_us = ticket.score - tonumber(ticket.member:sub(1, 1)) * head_start_us
  if now - stood_us >= view.patience then return ticket end
  read_mark(view, ticket)
  if ticket.skips >= MAX_SKIPS then return ticket end
  local other = head(view, ticket.band, ',' .. warm .. ',')
  if not other or pick.avoided(view, other) == server then return ticket end
  skip(view, ticket)
  return other
end

-- Takes the ticket out of the line and charges its tenant; returns the charge in GPU-seconds.
function pick.take(view, ticket)
  local pool, band, tenant = view.pool, ticket.band, ticket.tenant
  local _, left = line.remove(pool, band, ticket.model, tenant, ticket.member)
  local seconds = estimate.read(ticket.model, tenant)
  fair.dispatch(pool, band, tenant, seconds, left)
  if band > 0 then redis.call('HDEL', key.pool(pool), 'passed:' .. band) end
  for _, other in ipairs(view.bands) do
    if other > band then redis.call('HINCRBY', key.pool(pool), 'passed:' .. other, 1) end
  end
  return seconds
end
