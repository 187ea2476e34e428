-- Where a ticket stands in the line: an estimate, from 1, of the jobs that go before it and run on its servers. However
-- many wait, so many tenants are looked at and so many lines of each, and stand for the others; what is asked of them is
-- asked once in a call.
-- A ticket here is {name, model, tenant, score, rank, parked, comes_last}; name: its line, as in `models`; rank: there,
-- nil if it is only thought of; comes_last: nobody of a fifo line stands behind it. most: {tenants, lines}: of other
-- tenants, and of its own, to look at.
-- include: pick
-- include: forecast

local OTHERS_LINES = 4
local COARSE = 1.25  -- a sample among so many more, or fewer, is as good

local function up_to(score) return string.format('(%.0f', score) end

-- The models of all classes that have this one; it alone while none has: ',a,b,'.
local function on_same_servers(pool, classes, model)
  return once(pool.name, 'with ' .. model, function()
    local models = ''
    for _, class in ipairs(classes) do
      if serves(class[2], model) then models = models .. class[2] end
    end
    return models ~= '' and models or ',' .. model .. ','
  end)
end

-- The sum of count(name) over a tenant's lines in the queue for these models, whose first ticket comes before `score` in
-- the tenant's own order. most: lines to look at.
local function sum_over_lines(queue, tenant, models, score, most, count)
  local lines, sum = Keys.models(queue.at, tenant), 0
  local names = redis.call('ZRANGE', lines, '-inf', score, 'BYSCORE', 'LIMIT', 0, most + 1)
  for i = 1, math.min(#names, most) do
    if serves(models, names[i]:sub(2)) then sum = sum + count(names[i]) end
  end
  if #names <= most then return sum end
  return sum * redis.call('ZCOUNT', lines, '-inf', score) / most
end

-- Its place among its tenant's tickets for these models in the queue.
local function own_place(pool, queue, ticket, models, most)
  local own = own_score(pool, queue, ticket.name, ticket.score)
  local before = ticket.rank or redis.call('ZCOUNT', named_line(pool, ticket.name, ticket.tenant), '-inf', up_to(ticket.score))
  local function count(name)
    if name == ticket.name then return 0 end
    return redis.call('ZCOUNT', named_line(pool, name, ticket.tenant), '-inf', up_to(line_score(pool, queue, name, own)))
  end
  return 1 + before + math.floor(sum_over_lines(queue, ticket.tenant, models, up_to(own), most.lines, count))
end

-- Tenants of an order with a score below this one, and perhaps some others: {name, score, stands_for, tickets: as
-- counted, by models}. Those at the head one by one, of the rest every so manieth.
local function sample(pool, order, score, most)
  local samples = once(pool.name, order, function() return { all = redis.call('ZCARD', order) } end)
  local among, size = samples.all, 0
  if among > most then
    among = redis.call('ZCOUNT', order, '-inf', score)
    size = among > most and math.floor(math.log(among) / math.log(COARSE)) or 0
  end
  if samples[size] then return samples[size] end
  local found, half = {}, math.floor(most / 2)
  samples[size] = found
  local function add(from, to, stands_for)
    local flat = redis.call('ZRANGE', order, from, to, 'WITHSCORES')
    for i = 1, #flat, 2 do
      found[#found + 1] = { name = flat[i], score = tonumber(flat[i + 1]), stands_for = stands_for, tickets = {} }
    end
  end
  if size == 0 then
    add(0, most - 1, 1)
    return found
  end
  local step = (among - half) / half
  add(0, half - 1, 1)
  for i = 0, half - 1 do
    local at = half + math.floor((i + 0.5) * step)
    add(at, at, step)
  end
  return found
end

-- Tickets of other tenants that a fifo queue serves before this one: those with a lower score.
local function before_in_fifo(pool, queue, ticket, models, most)
  local score, sum = up_to(ticket.score), 0
  for _, other in ipairs(sample(pool, Keys.heads(queue.at), score, most.tenants)) do
    local function count(name) return redis.call('ZCOUNT', named_line(pool, name, other.name), '-inf', score) end
    if other.name ~= ticket.tenant and other.score < ticket.score then
      sum = sum + other.stands_for * sum_over_lines(queue, other.name, models, score, OTHERS_LINES, count)
    end
  end
  return sum
end

local function start_tag(queue, tenant)
  return once(queue.at, 'tag ' .. tenant, function()
    return tonumber(redis.call('ZSCORE', Keys.turn(queue.at), tenant))
      or math.max(queue.virtual, tonumber(redis.call('HGET', Keys.paid(queue.at), tenant)) or 0)
  end)
end

-- What a run adds to the tag.
local function step_of_tag(queue, model, tenant)
  return once(queue.at, 'step ' .. model .. ':' .. tenant, function()
    return estimated_seconds(model, tenant) / rules_of(tenant).weight
  end)
end

-- Its tickets for these models in the queue.
local function tickets_of(pool, queue, tenant, models)
  if not tenant.tickets[models] then
    tenant.tickets[models] = sum_over_lines(queue, tenant.name, models, '+inf', OTHERS_LINES, function(line)
      return redis.call('ZCARD', named_line(pool, line, tenant.name))
    end)
  end
  return tenant.tickets[models]
end

-- Those that a fair queue serves before its tenant's `own`th: of each other tenant so many as have start tags below the
-- one that its own will have by then, each worth what a waiting job is in the mean.
local function before_in_fair(pool, queue, ticket, models, own, most)
  local start, sum = start_tag(queue, ticket.tenant), 0
  if own > 1 then start = start + (own - 1) * step_of_tag(queue, ticket.model, ticket.tenant) end
  local others = sample(pool, Keys.turn(queue.at), start, most.tenants)
  read_rules(others)
  for _, other in ipairs(others) do
    if other.name ~= ticket.tenant and other.score <= start then
      local turns = (start - other.score) * rules_of(other.name).weight / pace(pool.name).mean
      local jobs = math.ceil(turns)
      if jobs == turns and other.name < ticket.tenant then jobs = jobs + 1 end  -- equal tags go by name
      if jobs > 1 or queue.mixed then jobs = math.min(jobs, tickets_of(pool, queue, other, models)) end
      sum = sum + other.stands_for * jobs
    end
  end
  return sum
end

-- Tickets of the pool for models that run elsewhere.
local function for_others(pool_name, models)
  return once(pool_name, 'but ' .. models, function()
    local sum = 0
    for model, count in pairs(pace(pool_name).depth) do
      if not serves(models, model) then sum = sum + count end
    end
    return sum
  end)
end

-- Also its place among its tenant's. Of a parked tenant: the place it would have if it went on now.
local function position(pool, queue, classes, ticket, most)
  local models = queue.mixed and on_same_servers(pool, classes, ticket.model) or ',' .. ticket.model .. ','
  local own, higher, all = own_place(pool, queue, ticket, models, most), 0, 0
  for _, one in ipairs(pool.queues) do
    if one.band < queue.band then higher = higher + one.waiting end
    all = all + one.waiting
  end
  local not_waiting = ticket.parked and own or ticket.rank and 0 or 1
  local last = higher + queue.waiting + not_waiting
  if queue.mixed then last = math.max(own, math.min(last, all + not_waiting - for_others(pool.name, models))) end
  if pool.fifo and ticket.comes_last then return last, own end
  local before
  if pool.fifo then
    before = before_in_fifo(pool, queue, ticket, models, most)
  else
    before = before_in_fair(pool, queue, ticket, models, own, most)
  end
  return math.min(last, higher + own + math.floor(before + 0.5)), own
end
