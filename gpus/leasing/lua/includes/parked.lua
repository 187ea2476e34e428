-- Tenants that get no new lease for a while. `parked` holds, by tenant, the reasons why, one letter each: who has none
-- left goes on. Their tickets stay where they stand, but no order names them, so that no claim walks over them.
-- include: line

local function each_queue(pool, tenant, act)
  for _, queue in ipairs(pool.queues) do
    local models = redis.call('ZRANGE', key('models', queue.at, tenant), 0, -1, 'WITHSCORES')
    if models[1] then act(queue, models) end
  end
end

-- Counts the tenant's tickets of a model on the other side. Returns how many they are.
local function recount(pool, queue, model, tenant, parked)
  local tickets = redis.call('ZCARD', key('line', queue.at, model, tenant))
  count_tickets(pool, queue, model, -tickets, not parked)
  count_tickets(pool, queue, model, tickets, parked)
  return tickets
end

local function park(pool, tenant, reason)
  local reasons = redis.call('HGET', key('parked', pool.name), tenant) or ''
  if reasons:find(reason, 1, true) then return end
  redis.call('HSET', key('parked', pool.name), tenant, reasons .. reason)
  if reasons ~= '' then return end
  pool.parked = pool.parked + 1
  each_queue(pool, tenant, function(queue, models)
    for i = 1, #models, 2 do
      recount(pool, queue, models[i], tenant, true)
      redis.call('ZREM', key('turn', queue.at, models[i]), tenant)
      redis.call('ZREM', key('heads', queue.at, models[i]), tenant)
    end
    redis.call('ZREM', key('heads', queue.at), tenant)
    withdraw_turn(queue, tenant)
  end)
end

-- Like one that comes back from idle: not before the virtual time. back: tickets by model, what came back is added.
local function unpark(pool, tenant, reason, back)
  local reasons = redis.call('HGET', key('parked', pool.name), tenant) or ''
  local others = reasons:gsub(reason, '')
  if others == reasons then return end
  if others ~= '' then
    redis.call('HSET', key('parked', pool.name), tenant, others)
    return
  end
  redis.call('HDEL', key('parked', pool.name), tenant)
  pool.parked = pool.parked - 1
  each_queue(pool, tenant, function(queue, models)
    for i = 1, #models, 2 do
      local model, score = models[i], models[i + 1]
      back[model] = (back[model] or 0) + recount(pool, queue, model, tenant, false)
      redis.call('ZADD', key('heads', queue.at, model), score, tenant)
    end
    redis.call('ZADD', key('heads', queue.at), models[2], tenant)
    move_turn(queue, tenant, enter_turn(queue, tenant), models)
  end)
end
