-- Where a ticket stands in the line, and when it will start.
-- include: keys
-- include: call
-- include: pools
-- include: classes
-- include: shares
-- include: line

-- When a ticket will start: first guess (its position × what a ticket takes the pool), and by which factor guesses
-- were wrong. Of one job in four the guess at its push is kept in `foretold` until it starts; then the error moves the
-- factors in `forecast` that as many real waits lie below as they should: the median and the 90 % quantile, each by
-- stochastic approximation (Robbins, Monro 1951), in logarithms, per decade of the guess. So the factors hold what no
-- guess knows: arrivals that overtake, run times that vary, slots that come and go.

local SHORTEST = 0.1  -- seconds; shorter waits are not told apart
local NEWEST_MOVES = 0.08
local FIRST_P50, FIRST_P90 = 0, 1.3862943611198906  -- the logarithm of 4; there is no `math` while a library is loaded
local ABOVE_P90 = 0.94  -- waits that go wrong are learnt from last: aimed a little higher than it shall hit
local MOST_FIELDS = 1000  -- of one command; Lua's stack holds some thousands
local WORKING = { 'free', 'leased', 'adoptable', 'settling' }

-- What `read` answers, asked once in a call. of: a pool or a queue.
local function once(of, what, read)
  local name = of .. ':' .. what
  if Call.paces[name] == nil then Call.paces[name] = read() end
  return Call.paces[name]
end

-- {what a ticket takes the pool, in seconds: mean GPU-seconds ÷ slots that work; that mean; those slots; tickets by
-- model; factors, as far as they were asked for}
local function read_pace(pool_name)
  local flat, models, depth, total = redis.call('HGETALL', Keys.depth(pool_name)), {}, {}, 0
  for i = 1, #flat, 2 do
    local count = tonumber(flat[i + 1])
    if count > 0 then models[#models + 1], depth[flat[i]], total = flat[i], count, total + count end
  end
  local seconds = 0
  for from = 1, #models, MOST_FIELDS do
    local to = math.min(#models, from + MOST_FIELDS - 1)
    for i, known in ipairs(redis.call('HMGET', Keys.estimates(), unpack(models, from, to))) do
      seconds = seconds + depth[models[from + i - 1]] * (tonumber(known) or 1)
    end
  end
  local mean, slots = total > 0 and seconds / total or 1, 0
  for _, count in ipairs(redis.call('HMGET', Keys.states(pool_name), unpack(WORKING))) do
    slots = slots + math.max(0, tonumber(count or 0) or 0)
  end
  return { per_ticket = mean / math.max(1, slots), mean = mean, slots = slots, depth = depth, factors = {} }
end

local function pace(pool_name)
  if not Call.paces[pool_name] then Call.paces[pool_name] = read_pace(pool_name) end
  return Call.paces[pool_name]
end

local function decade(guess) return math.max(-1, math.min(4, math.floor(math.log10(guess)))) end

-- {n, p50, p90}: waits seen, and the factors' logarithms.
local function read_factors(pool_name, at)
  local packed = redis.call('HGET', Keys.forecast(pool_name), at)
  if not packed then return { 0, FIRST_P50, FIRST_P90 } end
  return { cmsgpack.unpack(packed) }
end

-- The guess for a ticket at this position (0: it starts now), in seconds, and its factors.
local function guess_start(pool_name, position)
  local known = pace(pool_name)
  local guess = math.max(SHORTEST, position * known.per_ticket)
  local at = decade(guess)
  known.factors[at] = known.factors[at] or read_factors(pool_name, at)
  return guess, known.factors[at]
end

local function is_foretold(job) return job:byte(-1) % 4 == 0 end

local function foretell(pool, job, position)
  local guess = guess_start(pool.name, position)
  redis.call('HSET', Keys.foretold(pool.name), job, cmsgpack.pack(guess, Call.now))
end

local function moved(factor, share, real, step) return factor + step * (share - (real <= factor and 1 or 0)) end

-- The job starts: its guess was right or wrong.
local function learn_forecast(pool_name, job)
  local packed = is_foretold(job) and redis.call('HGET', Keys.foretold(pool_name), job)
  if not packed then return end
  redis.call('HDEL', Keys.foretold(pool_name), job)
  local guess, told_us = cmsgpack.unpack(packed)
  local real = math.log(math.max(SHORTEST, (Call.now - told_us) / 1000000) / guess)
  local at = decade(guess)
  local factors = read_factors(pool_name, at)
  local step = math.max(NEWEST_MOVES, 1 / (factors[1] + 2))
  redis.call('HSET', Keys.forecast(pool_name), at, cmsgpack.pack(factors[1] + 1,
    moved(factors[2], 0.5, real, step), moved(factors[3], ABOVE_P90, real, step)))
end

local function forget_forecast(pool_name, job)
  if is_foretold(job) then redis.call('HDEL', Keys.foretold(pool_name), job) end
end

-- Where a ticket stands in the line: an estimate, from 1, of the jobs that go before it and run on its servers.
-- However many wait, so many tenants are looked at and so many lines of each, and stand for the others; what is asked
-- of them is asked once in a call. A ticket here is {name, model, tenant, score, rank, parked, comes_last}; name: its
-- line, as in `models`; rank: there, nil if it is only thought of; comes_last: nobody of a fifo line stands behind it.
-- most: {tenants, lines}: of other tenants, and of its own, to look at.

local OTHERS_LINES = 4
local COARSE = 1.25  -- a sample among so many more, or fewer, is as good

local function up_to(score) return string.format('(%.0f', score) end

-- The models of all classes that have this one; it alone while none has: ',a,b,'.
local function on_same_servers(pool, classes, model)
  return once(pool.name, 'with ' .. model, function()
    local models = ''
    for _, class in ipairs(classes) do
      if Classes.serves(class[2], model) then models = models .. class[2] end
    end
    return models ~= '' and models or ',' .. model .. ','
  end)
end

-- The sum of count(name) over a tenant's lines in the queue for these models, whose first ticket comes before `score`
-- in the tenant's own order. most: lines to look at.
local function sum_over_lines(queue, tenant, models, score, most, count)
  local lines, sum = Keys.models(queue.at, tenant), 0
  local names = redis.call('ZRANGE', lines, '-inf', score, 'BYSCORE', 'LIMIT', 0, most + 1)
  for i = 1, math.min(#names, most) do
    if Classes.serves(models, names[i]:sub(2)) then sum = sum + count(names[i]) end
  end
  if #names <= most then return sum end
  return sum * redis.call('ZCOUNT', lines, '-inf', score) / most
end

-- Its place among its tenant's tickets for these models in the queue.
local function own_place(pool, queue, ticket, models, most)
  local own = Line.own_score(pool, queue, ticket.name, ticket.score)
  local before = ticket.rank or redis.call('ZCOUNT', Line.named_line(pool, ticket.name, ticket.tenant), '-inf', up_to(ticket.score))
  local function count(name)
    if name == ticket.name then return 0 end
    return redis.call('ZCOUNT', Line.named_line(pool, name, ticket.tenant), '-inf', up_to(Line.line_score(pool, queue, name, own)))
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
    local function count(name) return redis.call('ZCOUNT', Line.named_line(pool, name, other.name), '-inf', score) end
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
    return Shares.estimated_seconds(model, tenant) / Pools.rules_of(tenant).weight
  end)
end

-- Its tickets for these models in the queue.
local function tickets_of(pool, queue, tenant, models)
  if not tenant.tickets[models] then
    tenant.tickets[models] = sum_over_lines(queue, tenant.name, models, '+inf', OTHERS_LINES, function(line)
      return redis.call('ZCARD', Line.named_line(pool, line, tenant.name))
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
  Pools.read_rules(others)
  for _, other in ipairs(others) do
    if other.name ~= ticket.tenant and other.score <= start then
      local turns = (start - other.score) * Pools.rules_of(other.name).weight / pace(pool.name).mean
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
      if not Classes.serves(models, model) then sum = sum + count end
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

return {
  foretell = foretell, forget_forecast = forget_forecast, guess_start = guess_start, is_foretold = is_foretold,
  learn_forecast = learn_forecast, pace = pace, position = position, start_tag = start_tag,
}
