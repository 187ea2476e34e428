-- Start-time fair queueing in GPU-seconds (Goyal, Vin, Cheng 1996): a backlogged tenant's start tag stands in
-- `turn`, the finish tag of one that is not in `paid`, and the virtual time is the start tag that was served last.
-- Tags move only here. They are kept per model too, because a server may run some of a pool's models only.
-- include: keys

local function weight_of(tenant) return tonumber(redis.call('HGET', key('weights'), tenant)) or 1 end

-- models: those the tenant waits for, as ZRANGE WITHSCORES gives them.
local function move_turn(queue, tenant, tag, models)
  redis.call('ZADD', key('turn', queue.at), tag, tenant)
  for i = 1, #models, 2 do redis.call('ZADD', key('turn', queue.at, models[i]), tag, tenant) end
end

local function leave_turn(queue, tenant, tag)
  redis.call('ZREM', key('turn', queue.at), tenant)
  redis.call('HSET', key('paid', queue.at), tenant, tag)
end

-- The start tag of a tenant whose ticket is about to stand in line.
local function enter_turn(queue, tenant)
  local tag = redis.call('ZSCORE', key('turn', queue.at), tenant)
  if tag then return tag end
  tag = math.max(queue.virtual, tonumber(redis.call('HGET', key('paid', queue.at), tenant)) or 0)
  redis.call('HDEL', key('paid', queue.at), tenant)
  redis.call('ZADD', key('turn', queue.at), tag, tenant)
  return tag
end

-- The tenant's last ticket was taken back, or it is parked: it pays nothing.
local function withdraw_turn(queue, tenant)
  local tag = redis.call('ZSCORE', key('turn', queue.at), tenant)
  if tag then leave_turn(queue, tenant, tag) end
end

-- One of the tenant's tickets was dispatched. models: what it still waits for.
local function pay_turn(queue, tenant, seconds, models)
  local start = tonumber(redis.call('ZSCORE', key('turn', queue.at), tenant))
  queue.virtual = math.max(queue.virtual, start)
  local finish = start + seconds / weight_of(tenant)
  if models[1] then
    move_turn(queue, tenant, finish, models)
  else
    leave_turn(queue, tenant, finish)
  end
end

-- What was charged at dispatch was wrong by this much. A refund never puts a tenant before the virtual time:
-- nobody saves up turns.
local function correct_turn(queue, tenant, seconds)
  if seconds == 0 then return end
  local turn = tonumber(redis.call('ZSCORE', key('turn', queue.at), tenant))
  local tag = turn or tonumber(redis.call('HGET', key('paid', queue.at), tenant)) or queue.virtual
  local corrected = math.max(tag + seconds / weight_of(tenant), math.min(tag, queue.virtual))
  if turn then
    move_turn(queue, tenant, corrected, redis.call('ZRANGE', key('models', queue.at, tenant), 0, -1, 'WITHSCORES'))
  else
    redis.call('HSET', key('paid', queue.at), tenant, corrected)
  end
end
