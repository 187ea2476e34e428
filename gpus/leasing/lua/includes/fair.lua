-- Start-time fair queueing in GPU-seconds (Goyal, Vin, Cheng 1996): a backlogged tenant's start tag stands in
-- `turn`, the finish tag of one that is not in `paid`, and the virtual time is the start tag that was served last.
-- Tags move only here. They are kept per model too, because a server may run some of a pool's models only.
-- include: keys
local fair = {}

local function weight(tenant) return tonumber(redis.call('HGET', key.weights, tenant)) or 1 end

function fair.virtual(pool, band) return tonumber(redis.call('HGET', key.pool(pool), 'virtual:' .. band)) or 0 end

local function move(pool, band, tenant, tag)
  redis.call('ZADD', key.turn(pool, band), tag, tenant)
  for _, model in ipairs(redis.call('ZRANGE', key.models(pool, band, tenant), 0, -1)) do
    redis.call('ZADD', key.turn_of(pool, band, model), tag, tenant)
  end
end

-- The start tag of a tenant whose ticket is about to stand in line.
function fair.enter(pool, band, tenant)
  local tag = tonumber(redis.call('ZSCORE', key.turn(pool, band), tenant))
  if tag then return tag end
  local paid = key.paid(pool, band)
  tag = math.max(fair.virtual(pool, band), tonumber(redis.call('HGET', paid, tenant)) or 0)
  redis.call('HDEL', paid, tenant)
  redis.call('ZADD', key.turn(pool, band), tag, tenant)
  return tag
end

local function leave(pool, band, tenant, tag)
  redis.call('ZREM', key.turn(pool, band), tenant)
  redis.call('HSET', key.paid(pool, band), tenant, tag)
end

-- The tenant's last ticket was taken back: it pays nothing.
function fair.withdraw(pool, band, tenant)
  leave(pool, band, tenant, redis.call('ZSCORE', key.turn(pool, band), tenant))
end

-- One of the tenant's tickets was dispatched. left: it was the last one.
function fair.dispatch(pool, band, tenant, seconds, left)
  local start = tonumber(redis.call('ZSCORE', key.turn(pool, band), tenant))
  if start > fair.virtual(pool, band) then
    redis.call('HSET', key.pool(pool), 'virtual:' .. band, start)
  end
  local finish = start + seconds / weight(tenant)
  if left then
    leave(pool, band, tenant, finish)
  else
    move(pool, band, tenant, finish)
  end
end

-- What was charged at dispatch was wrong by this much. A refund never puts a tenant before the virtual time:
-- nobody saves up turns.
function fair.correct(pool, band, tenant, seconds)
  if seconds == 0 then return end
  local virtual = fair.virtual(pool, band)
  local turn = tonumber(redis.call('ZSCORE', key.turn(pool, band), tenant))
  local tag = turn or tonumber(redis.call('HGET', key.paid(pool, band), tenant)) or virtual
  local corrected = math.max(tag + seconds / weight(tenant), math.min(tag, virtual))
  if turn then
    move(pool, band, tenant, corrected)
  else
    redis.call('HSET', key.paid(pool, band), tenant, corrected)
  end
end
