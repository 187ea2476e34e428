-- Which ticket goes next to a slot. The band first; in it the tenant whose turn it is (fair) or the oldest ticket
-- (fifo), both read from the same lines, so that switching moves nothing. A set of models is written ',a,b,'.
-- A ticket here is {queue, model, tenant, rank, member, score}; rank is the tenant's tag, or the score.
-- include: keys
-- include: time
-- include: line
-- include: marks
-- include: estimate
-- include: kept

local BAND_WAITS = 15  -- dispatches (jobs, not seconds) of higher bands that a waiting band lets pass
local MAX_SKIPS = 8    -- how often a ticket is passed over, for a warm model or for the server it avoids
local WALK = 8         -- how far behind the head to look for a ticket that does not avoid the server

local function serves(models, model) return models:find(',' .. model .. ',', 1, true) ~= nil end

-- The queues with tickets, in the order in which they are served now.
local function queues_in_order(pool)
  local due, others = {}, {}
  for _, queue in ipairs(pool.queues) do
    if queue.waiting > 0 then
      local group = queue.passed >= BAND_WAITS and due or others
      group[#group + 1] = queue
    end
  end
  if not due[1] then return others end
  for _, queue in ipairs(others) do due[#due + 1] = queue end
  return due
end

-- Whether a goes before b, in one queue. Ties go by tenant, as in the zsets.
local function precedes(a, b)
  if a.rank ~= b.rank then return a.rank < b.rank end
  if a.tenant ~= b.tenant then return a.tenant < b.tenant end
  return a.score < b.score
end

-- The server that this ticket should not go to, as long as it may still be passed over and another one could
-- take it.
local function avoided_server(pool, ticket)
  local skips, avoid = read_mark(pool, ticket.member)
  if avoid ~= '' and skips < MAX_SKIPS and redis.call('SCARD', key('serving', pool.name, ticket.model)) > 1 then
    return avoid
  end
  return nil
end

local function skip(pool, ticket)
  local skips, avoid = read_mark(pool, ticket.member)
  set_mark(pool, ticket.member, skips + 1, avoid)
end

local function key_order_of(pool, queue, model)
  return pool.fifo and key('heads', queue.at, model) or key('turn', queue.at, model)
end

-- The first tenant that waits for one of the models, and its first such model: {model, tenant, rank}.
local function search(pool, queue, models)
  local found
  for model in models:gmatch('[^,]+') do
    local first = redis.call('ZRANGE', key_order_of(pool, queue, model), 0, 0, 'WITHSCORES')
    if first[1] then
      local rank = tonumber(first[2])
      local score = pool.fifo and rank or tonumber(redis.call('ZSCORE', key('models', queue.at, first[1]), model))
      local one = { model = model, tenant = first[1], rank = rank, score = score }
      if not found or precedes(one, found) then found = one end
    end
  end
  return found
end

-- The queue's head among tickets of these models, or nil.
local function head_of(pool, queue, models)
  local order = pool.fifo and key('heads', queue.at) or key('turn', queue.at)
  local first = redis.call('ZRANGE', order, 0, 0, 'WITHSCORES')
  local tenant, rank = first[1], tonumber(first[2])
  if not tenant then return nil end
  local model = redis.call('ZRANGE', key('models', queue.at, tenant), 0, 0)[1]
  if not serves(models, model) then
    local found = search(pool, queue, models)
    if not found then return nil end
    model, tenant, rank = found.model, found.tenant, found.rank
  end
  local ticket = redis.call('ZRANGE', key('line', queue.at, model, tenant), 0, 0, 'WITHSCORES')
  return {
    queue = queue, model = model, tenant = tenant, rank = rank, member = ticket[1], score = tonumber(ticket[2]),
  }
end

-- The next ticket behind a head that avoids this server.
local function behind(pool, queue, models, server)
  local found
  for model in models:gmatch('[^,]+') do
    local tenants = redis.call('ZRANGE', key_order_of(pool, queue, model), 0, WALK - 1, 'WITHSCORES')
    for t = 1, #tenants, 2 do
      local line = redis.call('ZRANGE', key('line', queue.at, model, tenants[t]), 0, WALK - 1, 'WITHSCORES')
      for i = 1, #line, 2 do
        local score = tonumber(line[i + 1])
        local one = {
          queue = queue, model = model, tenant = tenants[t], member = line[i], score = score,
          rank = pool.fifo and score or tonumber(tenants[t + 1]),
        }
        if avoided_server(pool, one) ~= server then
          if not found or precedes(one, found) then found = one end
          break
        end
      end
    end
  end
  return found
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
    if ticket then return ticket, place end
  end
  return nil
end

-- The ticket, or one of the same queue for the model that is warm on the slot: loading a model costs more than a
-- turn, but the head waits only so long for that.
local function prefer_warm(pool, ticket, warm, models, server, head_start_us)
  models = without_kept(pool.name, models)
  if not warm or warm == ticket.model or not serves(models, warm) then return ticket end
  local stood_us = ticket.score - level_of(ticket.member) * head_start_us
  if now - stood_us >= pool.patience then return ticket end
  if read_mark(pool, ticket.member) >= MAX_SKIPS then return ticket end
  local other = head_of(pool, ticket.queue, ',' .. warm .. ',')
  if not other or avoided_server(pool, other) == server then return ticket end
  skip(pool, ticket)
  return other
end

-- Takes the ticket out of the line and charges its tenant; returns the charge in GPU-seconds.
local function take_ticket(pool, ticket)
  local queue, tenant = ticket.queue, ticket.tenant
  for _, other in ipairs(pool.queues) do
    if other.band > queue.band and other.waiting > 0 then other.passed = other.passed + 1 end
  end
  queue.passed = 0
  local left = remove_ticket(pool, queue, ticket.model, tenant, ticket.member, false)
  local seconds = estimated_seconds(ticket.model, tenant)
  pay_turn(queue, tenant, seconds, left)
  return seconds
end
