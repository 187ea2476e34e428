-- When a ticket will start: first guess (its position × what a ticket takes the pool), and by which factor guesses were
-- wrong. Of one job in four the guess at its push is kept in `foretold` until it starts; then the error moves the
-- factors in `forecast` that as many real waits lie below as they should: the median and the 90 % quantile, each by stochastic
-- approximation (Robbins, Monro 1951), in logarithms, per decade of the guess. So the factors hold what no guess knows:
-- arrivals that overtake, run times that vary, slots that come and go.
-- include: keys
-- include: estimate

local SHORTEST = 0.1  -- seconds; shorter waits are not told apart
local NEWEST_MOVES = 0.08
local FIRST_P50, FIRST_P90 = 0, 1.3862943611198906  -- the logarithm of 4; there is no `math` while a library is loaded
local ABOVE_P90 = 0.94  -- waits that go wrong are learnt from last: aimed a little higher than it shall hit
local MOST_FIELDS = 1000  -- of one command; Lua's stack holds some thousands
local WORKING = { 'free', 'leased', 'adoptable', 'settling' }

-- What `read` answers, asked once in a call. of: a pool or a queue.
local function once(of, what, read)
  local name = of .. ':' .. what
  if paces[name] == nil then paces[name] = read() end
  return paces[name]
end

-- {what a ticket takes the pool, in seconds: mean GPU-seconds ÷ slots that work; that mean; those slots; tickets by model;
-- factors, as far as they were asked for}
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
  if not paces[pool_name] then paces[pool_name] = read_pace(pool_name) end
  return paces[pool_name]
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
  redis.call('HSET', Keys.foretold(pool.name), job, cmsgpack.pack(guess, now))
end

local function moved(factor, share, real, step) return factor + step * (share - (real <= factor and 1 or 0)) end

-- The job starts: its guess was right or wrong.
local function learn_forecast(pool_name, job)
  local packed = is_foretold(job) and redis.call('HGET', Keys.foretold(pool_name), job)
  if not packed then return end
  redis.call('HDEL', Keys.foretold(pool_name), job)
  local guess, told_us = cmsgpack.unpack(packed)
  local real = math.log(math.max(SHORTEST, (now - told_us) / 1000000) / guess)
  local at = decade(guess)
  local factors = read_factors(pool_name, at)
  local step = math.max(NEWEST_MOVES, 1 / (factors[1] + 2))
  redis.call('HSET', Keys.forecast(pool_name), at, cmsgpack.pack(factors[1] + 1,
    moved(factors[2], 0.5, real, step), moved(factors[3], ABOVE_P90, real, step)))
end

local function forget_forecast(pool_name, job)
  if is_foretold(job) then redis.call('HDEL', Keys.foretold(pool_name), job) end
end
