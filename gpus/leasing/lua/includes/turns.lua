-- The orders of tenants by start tag. `turn` of a queue lists all tenants that wait there. In a pool of several models a
-- slot must find the next tenant for its own models without scanning the others:
-- - A tenant with few lines (at most MAX_ORDERED) is also listed per model.
-- - A tenant with more is *broad*, and listed per class of servers that runs any of its models, so that a dispatch costs
--   the same however many models it waits for.
-- - While a model's circuit is open, a broad tenant that begins to wait for it is *aside*: listed per model.
-- - A class order may list tenants without a usable ticket: they began to wait before the circuit opened, or the class is
--   new. The first search that meets one sets it aside, so that each is met only once.
-- include: keys
-- include: classes

local OTHERS = 8  -- how many tenants `another_tenant` can exclude
local MAX_ORDERED = 4  -- lines of a tenant that is listed per model

-- The tenant's first MAX_ORDERED + 1 lines in the queue (all, if there are fewer), ordered by their first tickets.
local function some_lines(queue, tenant) return redis.call('ZRANGE', Keys.models(queue.at, tenant), 0, MAX_ORDERED) end

-- All lines of the tenant in the queue.
local function all_lines(queue, tenant) return redis.call('ZRANGE', Keys.models(queue.at, tenant), 0, -1) end

-- The key of a class's order.
local function class_order(queue, class) return Keys.class_turn(queue.at, class) end

-- The classes that run any of these lines' models, as a set.
local function classes_for(queue, lines)
  local found = {}
  for _, class in ipairs(Classes.all_classes(queue.pool)) do
    for _, name in ipairs(lines) do
      if Classes.serves(class[2], name:sub(2)) then
        found[class[1]] = true
        break
      end
    end
  end
  return found
end

-- Lists a broad tenant in the orders of its classes and of models with an open circuit. lines: the new ones, or all.
local function list_broad(queue, tenant, tag, lines)
  local with_circuit, others = Classes.read_kept(queue.pool).models, {}
  for _, name in ipairs(lines) do
    local model = name:sub(2)
    if with_circuit[model] then redis.call('ZADD', Keys.turn(queue.at, model), tag, tenant) else others[#others + 1] = name end
  end
  for class in pairs(classes_for(queue, others)) do redis.call('ZADD', class_order(queue, class), tag, tenant) end
end

-- Removes a broad tenant from all class orders.
local function unlist_broad(queue, tenant)
  if redis.call('SREM', Keys.broad(queue.at), tenant) == 0 then return end
  for _, class in ipairs(Classes.all_classes(queue.pool)) do redis.call('ZREM', class_order(queue, class[1]), tenant) end
end

-- Updates the tenant's tag in all orders that list it. lines: of `some_lines`, or all.
local function move_turn(queue, tenant, tag, lines)
  redis.call('ZADD', Keys.turn(queue.at), tag, tenant)
  if not queue.mixed then return end
  if #lines <= MAX_ORDERED then
    for _, name in ipairs(lines) do redis.call('ZADD', Keys.turn(queue.at, name:sub(2)), tag, tenant) end
    return
  end
  for _, class in ipairs(Classes.all_classes(queue.pool)) do
    redis.call('ZADD', class_order(queue, class[1]), 'XX', tag, tenant)
  end
  for model in pairs(Classes.read_kept(queue.pool).models) do
    redis.call('ZADD', Keys.turn(queue.at, model), 'XX', tag, tenant)
  end
end

-- Lists a tenant that was idle or parked. lines: all of them.
local function reenter(queue, tenant, tag, lines)
  if #lines <= MAX_ORDERED or not queue.mixed then return move_turn(queue, tenant, tag, lines) end
  redis.call('ZADD', Keys.turn(queue.at), tag, tenant)
  redis.call('SADD', Keys.broad(queue.at), tenant)
  list_broad(queue, tenant, tag, lines)
end

-- The tenant, with this tag, waits in one more line.
local function add_to_turn(queue, tenant, tag, line)
  if not queue.mixed then return end
  local lines = some_lines(queue, tenant)
  if #lines <= MAX_ORDERED then
    redis.call('ZADD', Keys.turn(queue.at, line:sub(2)), tag, tenant)
  elseif redis.call('SADD', Keys.broad(queue.at), tenant) == 0 then
    list_broad(queue, tenant, tag, { line })
  else
    for _, name in ipairs(lines) do redis.call('ZREM', Keys.turn(queue.at, name:sub(2)), tenant) end
    list_broad(queue, tenant, tag, lines)
  end
end

local function has_line_of(queue, tenant, model)
  for asked = 0, queue.band do
    if redis.call('ZSCORE', Keys.models(queue.at, tenant), asked .. model) then return true end
  end
  return false
end

-- A broad tenant waits in one line less, and stays broad. lines: some of the remaining ones.
local function drop_broad(queue, tenant, line, lines)
  local others, all = classes_for(queue, lines), nil
  for class in pairs(classes_for(queue, { line })) do
    if not others[class] then
      all = all or classes_for(queue, all_lines(queue, tenant))
      if not all[class] then redis.call('ZREM', class_order(queue, class), tenant) end
    end
  end
  local model = line:sub(2)
  if Classes.read_kept(queue.pool).models[model] and not has_line_of(queue, tenant, model) then
    redis.call('ZREM', Keys.turn(queue.at, model), tenant)  -- it may have been set aside
  end
end

-- The tenant waits in one line less. lines: the remaining ones, of `some_lines`.
local function drop_from_turn(queue, tenant, line, lines)
  if not queue.mixed then return end
  if #lines > MAX_ORDERED then return drop_broad(queue, tenant, line, lines) end
  local waits_on = false
  for _, name in ipairs(lines) do waits_on = waits_on or name:sub(2) == line:sub(2) end
  if not waits_on then redis.call('ZREM', Keys.turn(queue.at, line:sub(2)), tenant) end
  if #lines < MAX_ORDERED then return end
  unlist_broad(queue, tenant)
  move_turn(queue, tenant, redis.call('ZSCORE', Keys.turn(queue.at), tenant), lines)
end

-- A tenant other than these (a set) that waits for the model, with its queue and its score in the pool's order; or nil.
-- Broad tenants are examined by a random sample.
local function another_tenant(pool, model, tenants)
  for _, queue in ipairs(pool.queues) do
    if queue.waiting > 0 then
      local order = pool.fifo and Keys.heads or Keys.turn
      local flat = redis.call('ZRANGE', order(queue.at, pool.only ~= model and model or nil), 0, OTHERS, 'WITHSCORES')
      for i = 1, #flat, 2 do
        if not tenants[flat[i]] then return flat[i], queue, tonumber(flat[i + 1]) end
      end
      for _, tenant in ipairs(queue.mixed and redis.call('SRANDMEMBER', Keys.broad(queue.at), OTHERS + 1) or {}) do
        local score = not tenants[tenant] and has_line_of(queue, tenant, model) and redis.call('ZSCORE', order(queue.at), tenant)
        if score then return tenant, queue, tonumber(score) end
      end
    end
  end
  return nil
end

-- Removes a broad tenant without a usable ticket from the class's order. lines: all of its lines.
local function set_aside(queue, class, tenant, tag, lines)
  redis.call('ZREM', class_order(queue, class), tenant)
  for _, name in ipairs(lines) do
    if Classes.read_kept(queue.pool).models[name:sub(2)] then redis.call('ZADD', Keys.turn(queue.at, name:sub(2)), tag, tenant) end
  end
end

-- The model's circuit has closed: tenants that were set aside for it are listed per class again.
local function end_aside(pool, model)
  for _, queue in ipairs(pool.queues) do
    local order = Keys.turn(queue.at, model)
    local aside = queue.mixed and redis.call('ZINTER', 2, order, Keys.broad(queue.at), 'WEIGHTS', 1, 0, 'WITHSCORES') or {}
    for i = 1, #aside, 2 do
      list_broad(queue, aside[i], aside[i + 1], { '0' .. model })
      redis.call('ZREM', order, aside[i])
    end
  end
end

-- The class has its first server: its order lists all broad tenants; searches then remove those without a usable ticket.
local function begin_class(pool, class)
  for _, queue in ipairs(pool.queues) do
    if queue.mixed then
      redis.call('ZINTERSTORE', class_order(queue, class), 2, Keys.turn(queue.at), Keys.broad(queue.at), 'WEIGHTS', 1, 0)
    end
  end
end

-- The class has lost its last server: deletes its orders.
local function end_class(pool, class)
  for _, queue in ipairs(pool.queues) do redis.call('UNLINK', class_order(queue, class)) end
end

return {
  add_to_turn = add_to_turn, all_lines = all_lines, another_tenant = another_tenant, begin_class = begin_class,
  class_order = class_order, reenter = reenter, drop_from_turn = drop_from_turn, end_aside = end_aside,
  end_class = end_class, move_turn = move_turn, set_aside = set_aside, some_lines = some_lines,
  unlist_broad = unlist_broad, MAX_ORDERED = MAX_ORDERED,
}
