-- Estimates a ticket's position in the line, and when it will start.
-- include: keys
-- include: call
-- include: pools
-- include: classes
-- include: shares
-- include: line

-- The start: a guess (position × the pool's seconds per ticket), times learnt factors. For one job in four the guess at
-- its push is kept in `foretold` until the job starts. The error then moves the factors in `forecast`, the median and
-- the 90 % quantile of real wait ÷ guess, each by stochastic approximation (Robbins, Monro 1951), in logarithms, per
-- decade of the guess. So the factors cover what the guess cannot: tickets that overtake, run times that vary, slots
-- that come and go.

local SHORTEST = 0.1  -- seconds; shorter waits are not distinguished
local NEWEST_MOVES = 0.08
local FIRST_P50, FIRST_P90 = 0, 1.3862943611198906  -- the logarithm of 4; there is no `math` while a library is loaded
local ABOVE_P90 = 0.94  -- above 0.9, because the longest waits are learnt last
local MAX_FIELDS = 1000  -- per command; Lua's stack holds a few thousand
local WORKING = { 'free', 'leased', 'adoptable', 'settling' }

-- The result of `read`, cached for this call. of: a pool or a queue; what: the cache key there.
local function cached(of, what, read)
  local name = of .. ':' .. what
  if Call.paces[name] == nil then Call.paces[name] = read() end
  return Call.paces[name]
end

-- {per_ticket: the pool's seconds per ticket (mean GPU-seconds ÷ working slots); mean; slots; depth: tickets by model;
-- factors: those read so far}
local function read_pace(pool_name)
  local flat, models, depth, total = redis.call('HGETALL', Keys.depth(pool_name)), {}, {}, 0
  for i = 1, #flat, 2 do
    local count = tonumber(flat[i + 1])
    if count > 0 then models[#models + 1], depth[flat[i]], total = flat[i], count, total + count end
  end
  local seconds = 0
  for from = 1, #models, MAX_FIELDS do
    local to = math.min(#models, from + MAX_FIELDS - 1)
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

-- `read_pace`, cached for this call.
local function pace(pool_name)
  if not Call.paces[pool_name] then Call.paces[pool_name] = read_pace(pool_name) end
  return Call.paces[pool_name]
end

local function decade(guess) return math.max(-1, math.min(4, math.floor(math.log10(guess)))) end

-- {n, p50, p90}: number of waits learnt from, and the logarithms of the factors.
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

-- Whether the job's guess is stored: one job in four, by its id.
local function is_sampled(job) return job:byte(-1) % 4 == 0 end

-- Stores the guess of a sampled job's wait.
local function store_guess(pool, job, position)
  local guess = guess_start(pool.name, position)
  redis.call('HSET', Keys.foretold(pool.name), job, cmsgpack.pack(guess, Call.now))
end

local function moved(factor, share, real, step) return factor + step * (share - (real <= factor and 1 or 0)) end

-- The job starts: learns from the error of its guess.
local function learn_forecast(pool_name, job)
  local packed = is_sampled(job) and redis.call('HGET', Keys.foretold(pool_name), job)
  if not packed then return end
  redis.call('HDEL', Keys.foretold(pool_name), job)
  local guess, guessed_us = cmsgpack.unpack(packed)
  local real = math.log(math.max(SHORTEST, (Call.now - guessed_us) / 1000000) / guess)
  local at = decade(guess)
  local factors = read_factors(pool_name, at)
  local step = math.max(NEWEST_MOVES, 1 / (factors[1] + 2))
  redis.call('HSET', Keys.forecast(pool_name), at, cmsgpack.pack(factors[1] + 1,
    moved(factors[2], 0.5, real, step), moved(factors[3], ABOVE_P90, real, step)))
end

-- Deletes the stored guess of a job.
local function forget_forecast(pool_name, job)
  if is_sampled(job) then redis.call('HDEL', Keys.foretold(pool_name), job) end
end

-- The position: an estimate, from 1, of the jobs that go before a ticket and run on its servers. The cost is bounded: a
-- sample of tenants and of their lines represents the rest, and is read once per call. A ticket here is {name, model,
-- tenant, score, rank, parked, comes_last}; name: its line, as in `models`; rank: its index there, nil for a ticket that
-- was not pushed; comes_last: in a fifo queue no ticket is behind it. most: {tenants, lines}: other tenants, and lines of
-- its own tenant, to examine.

local OTHERS_LINES = 4
local COARSE = 1.25  -- a sample is reused for counts within this factor

local function below(score) return string.format('(%.0f', score) end

-- The models of all classes that run this model, or this model alone: ',a,b,'.
local function on_same_servers(pool, classes, model)
  return cached(pool.name, 'with ' .. model, function()
    local models = ''
    for _, class in ipairs(classes) do
      if Classes.serves(class[2], model) then models = models .. class[2] end
    end
    return models ~= '' and models or ',' .. model .. ','
  end)
end

-- The sum of count(name) over a tenant's lines in the queue for these models, whose first ticket comes before `score`
-- in the tenant's own order. most: lines to examine.
local function sum_over_lines(queue, tenant, models, score, most, count)
  local lines, sum = Keys.models(queue.at, tenant), 0
  local names = redis.call('ZRANGE', lines, '-inf', score, 'BYSCORE', 'LIMIT', 0, most + 1)
  for i = 1, math.min(#names, most) do
    if Classes.serves(models, names[i]:sub(2)) then sum = sum + count(names[i]) end
  end
  if #names <= most then return sum end
  return sum * redis.call('ZCOUNT', lines, '-inf', score) / most
end

-- The ticket's position among its tenant's tickets for these models in the queue.
local function own_place(pool, queue, ticket, models, most)
  local own = Line.own_score(pool, queue, ticket.name, ticket.score)
  local before = ticket.rank or redis.call('ZCOUNT', Line.named_line(pool, ticket.name, ticket.tenant), '-inf', below(ticket.score))
  local function count(name)
    if name == ticket.name then return 0 end
    return redis.call('ZCOUNT', Line.named_line(pool, name, ticket.tenant), '-inf', below(Line.line_score(pool, queue, name, own)))
  end
  return 1 + before + math.floor(sum_over_lines(queue, ticket.tenant, models, below(own), most.lines, count))
end

-- A sample of the tenants of an order whose score is below this one (and perhaps some others): {name, score, represents:
-- how many tenants, tickets: counts by models}. All tenants at the head, then evenly spaced ones.
local function sample(pool, order, score, most)
  local samples = cached(pool.name, order, function() return { all = redis.call('ZCARD', order) } end)
  local among, size = samples.all, 0
  if among > most then
    among = redis.call('ZCOUNT', order, '-inf', score)
    size = among > most and math.floor(math.log(among) / math.log(COARSE)) or 0
  end
  if samples[size] then return samples[size] end
  local found, half = {}, math.floor(most / 2)
  samples[size] = found
  local function add(from, to, represents)
    local flat = redis.call('ZRANGE', order, from, to, 'WITHSCORES')
    for i = 1, #flat, 2 do
      found[#found + 1] = { name = flat[i], score = tonumber(flat[i + 1]), represents = represents, tickets = {} }
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

-- The number of other tenants' tickets that a fifo queue serves before this one: those with a lower score.
local function before_in_fifo(pool, queue, ticket, models, most)
  local score, sum = below(ticket.score), 0
  for _, other in ipairs(sample(pool, Keys.heads(queue.at), score, most.tenants)) do
    local function count(name) return redis.call('ZCOUNT', Line.named_line(pool, name, other.name), '-inf', score) end
    if other.name ~= ticket.tenant and other.score < ticket.score then
      sum = sum + other.represents * sum_over_lines(queue, other.name, models, score, OTHERS_LINES, count)
    end
  end
  return sum
end

-- The tenant's start tag, or the one it would get now.
local function start_tag(queue, tenant)
  return cached(queue.at, 'tag ' .. tenant, function()
    return tonumber(redis.call('ZSCORE', Keys.turn(queue.at), tenant))
      or math.max(queue.virtual, tonumber(redis.call('HGET', Keys.paid(queue.at), tenant)) or 0)
  end)
end

-- How much one job adds to the tenant's tag.
local function step_of_tag(queue, model, tenant)
  return cached(queue.at, 'step ' .. model .. ':' .. tenant, function()
    return Shares.estimated_seconds(model, tenant) / Pools.rules_of(tenant).weight
  end)
end

-- The number of a sampled tenant's tickets for these models in the queue.
local function tickets_of(pool, queue, tenant, models)
  if not tenant.tickets[models] then
    tenant.tickets[models] = sum_over_lines(queue, tenant.name, models, '+inf', OTHERS_LINES, function(line)
      return redis.call('ZCARD', Line.named_line(pool, line, tenant.name))
    end)
  end
  return tenant.tickets[models]
end

-- The number of other tenants' tickets that a fair queue serves before this tenant's ticket number `own`: those whose
-- start tags are below that ticket's, if each job costs the pool's mean.
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
      sum = sum + other.represents * jobs
    end
  end
  return sum
end

-- The number of tickets of the pool for models other than these.
local function for_others(pool_name, models)
  return cached(pool_name, 'but ' .. models, function()
    local sum = 0
    for model, count in pairs(pace(pool_name).depth) do
      if not Classes.serves(models, model) then sum = sum + count end
    end
    return sum
  end)
end

-- The position, and the position among its tenant's tickets. For a parked tenant: as if it were released now.
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
  store_guess = store_guess, forget_forecast = forget_forecast, guess_start = guess_start, is_sampled = is_sampled,
  learn_forecast = learn_forecast, pace = pace, position = position, start_tag = start_tag,
}
