-- Tenants that get no new lease for a while. `parked` holds, by tenant, the reasons why, one letter each: who has none
-- left goes on. Their tickets stay where they stand, but no order names them, so that no claim walks over them.
-- include: line

local function each_queue(pool, tenant, act)
  for _, queue in ipairs(pool.queues) do
    local models = redis.call('ZRANGE', Keys.models(queue.at, tenant), 0, -1, 'WITHSCORES')
    if models[1] then act(queue, models) end
  end
end

-- Takes the tenant out of the queue's orders, or puts it in. models: its lines there.
local function leave_orders(pool, queue, tenant, models)
  for i = 1, queue.mixed and #models or 0, 2 do
    redis.call('ZREM', Keys.turn(queue.at, models[i]:sub(2)), tenant)
    redis.call('ZREM', Keys.heads(queue.at, models[i]:sub(2)), tenant)
  end
  redis.call('ZREM', Keys.heads(queue.at), tenant)
  unname_broad(queue, tenant)
  withdraw_turn(queue, tenant)
end

-- Like one that comes back from idle: not before the virtual time.
local function enter_orders(pool, queue, tenant, models)
  for i = 1, #models, 2 do seat(pool, queue, tenant, models[i]:sub(2), models) end
  come_back(queue, tenant, enter_turn(queue, tenant), names_of(models))
end

-- Counts the tenant's tickets of a line on the other side. Returns how many they are.
local function recount(pool, queue, name, tenant, parked)
  local tickets = redis.call('ZCARD', named_line(pool, name, tenant))
  count_tickets(pool, queue, name:sub(2), tenant, -tickets, not parked)
  count_tickets(pool, queue, name:sub(2), tenant, tickets, parked)
  return tickets
end

local function park(pool, tenant, reason)
  if not add_reason(pool, tenant, reason) then return end
  each_queue(pool, tenant, function(queue, models)
    for i = 1, #models, 2 do recount(pool, queue, models[i], tenant, true) end
    leave_orders(pool, queue, tenant, models)
  end)
end

-- back: tickets by model, what came back is added.
local function unpark(pool, tenant, reason, back)
  if not drop_reason(pool, tenant, reason) then return end
  each_queue(pool, tenant, function(queue, models)
    for i = 1, #models, 2 do
      local model = models[i]:sub(2)
      back[model] = (back[model] or 0) + recount(pool, queue, models[i], tenant, false)
      offer_try(pool, model, tenant)
    end
    enter_orders(pool, queue, tenant, models)
  end)
end
