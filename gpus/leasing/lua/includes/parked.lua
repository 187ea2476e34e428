-- Parked tenants get no new lease: they are paused, out of quota, or at max_running (running.lua). `parked` holds, by
-- tenant, the reasons, one letter each; the tenant is released when the last reason is gone. Its tickets stay in their
-- lines, but the tenant is in no order, so that claims do not scan them. Python: `ParkedFor` in gpus/leasing/values.py.
-- include: keys
-- include: classes
-- include: turns
-- include: shares
-- include: line

-- Calls `act` with each queue in which the tenant waits, and its lines there with scores.
local function each_queue(pool, tenant, act)
  for _, queue in ipairs(pool.queues) do
    local models = redis.call('ZRANGE', Keys.models(queue.at, tenant), 0, -1, 'WITHSCORES')
    if models[1] then act(queue, models) end
  end
end

-- Removes the tenant from the queue's orders. models: its lines there, with scores.
local function leave_orders(pool, queue, tenant, models)
  for i = 1, queue.mixed and #models or 0, 2 do
    redis.call('ZREM', Keys.turn(queue.at, models[i]:sub(2)), tenant)
    redis.call('ZREM', Keys.heads(queue.at, models[i]:sub(2)), tenant)
  end
  redis.call('ZREM', Keys.heads(queue.at), tenant)
  Turns.unlist_broad(queue, tenant)
  Shares.withdraw_turn(queue, tenant)
end

-- Adds the tenant to the queue's orders like one that was idle: its start tag is at least the virtual time.
local function enter_orders(pool, queue, tenant, models)
  for i = 1, #models, 2 do Line.update_heads(pool, queue, tenant, models[i]:sub(2), models) end
  Turns.reenter(queue, tenant, Shares.enter_turn(queue, tenant), Line.names_of(models))
end

-- Moves the line's tickets between the counts of parked and waiting tickets. Returns how many they are.
local function recount(pool, queue, name, tenant, parked)
  local tickets = redis.call('ZCARD', Line.named_line(pool, name, tenant))
  Line.count_tickets(pool, queue, name:sub(2), tenant, -tickets, not parked)
  Line.count_tickets(pool, queue, name:sub(2), tenant, tickets, parked)
  return tickets
end

-- Adds a reason; with the first one the tenant's tickets are parked.
local function park(pool, tenant, reason)
  if not Line.add_reason(pool, tenant, reason) then return end
  each_queue(pool, tenant, function(queue, models)
    for i = 1, #models, 2 do recount(pool, queue, models[i], tenant, true) end
    leave_orders(pool, queue, tenant, models)
  end)
end

-- back: tickets by model; the tickets that wait again are added.
local function unpark(pool, tenant, reason, back)
  if not Line.drop_reason(pool, tenant, reason) then return end
  each_queue(pool, tenant, function(queue, models)
    for i = 1, #models, 2 do
      local model = models[i]:sub(2)
      back[model] = (back[model] or 0) + recount(pool, queue, models[i], tenant, false)
      Classes.offer_trial(pool, model, tenant)
    end
    enter_orders(pool, queue, tenant, models)
  end)
end

return {
  each_queue = each_queue, enter_orders = enter_orders, leave_orders = leave_orders, park = park, unpark = unpark,
}
