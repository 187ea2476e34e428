-- The orders in which tenants stand by their start tags. `turn` of a queue names all that wait there. Once a pool has
-- several models a server may run some of them only, and a slot must find whose turn it is among those that wait for
-- what it runs without a walk over the others. So who waits in few lines is also named by each of their models; who
-- waits in more is *broad*, and named by each class of servers that runs any of them, so that a turn costs the same
-- however many models somebody waits for. While the circuit of a model is open most of the time no slot may take its
-- tickets. Whoever begins to wait for it then is *aside*: named by the model, also if it is broad. Who did before may
-- still stand by class, as may tenants that wait for nothing of a class that is new. Whoever meets one there sets it
-- aside, so that each is met once and nothing is walked over twice.
-- include: keys
-- include: classes

local OTHERS = 8  -- tenants that `another_tenant` may be asked not to name
local MOST_ORDERED = 4  -- lines of a tenant that is named by each of their models

-- The tenant's lines in the queue, their first tickets' order; of one that has more than MOST_ORDERED, one more.
local function some_lines(queue, tenant) return redis.call('ZRANGE', Keys.models(queue.at, tenant), 0, MOST_ORDERED) end
local function all_lines(queue, tenant) return redis.call('ZRANGE', Keys.models(queue.at, tenant), 0, -1) end

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

-- lines: those that came, or all of them.
local function name_broad(queue, tenant, tag, lines)
  local with_circuit, others = Classes.read_kept(queue.pool).models, {}
  for _, name in ipairs(lines) do
    local model = name:sub(2)
    if with_circuit[model] then redis.call('ZADD', Keys.turn(queue.at, model), tag, tenant) else others[#others + 1] = name end
  end
  for class in pairs(classes_for(queue, others)) do redis.call('ZADD', class_order(queue, class), tag, tenant) end
end

local function unname_broad(queue, tenant)
  if redis.call('SREM', Keys.broad(queue.at), tenant) == 0 then return end
  for _, class in ipairs(Classes.all_classes(queue.pool)) do redis.call('ZREM', class_order(queue, class[1]), tenant) end
end

-- The tenant has another tag; it stands where it stood. lines: as above, or all.
local function move_turn(queue, tenant, tag, lines)
  redis.call('ZADD', Keys.turn(queue.at), tag, tenant)
  if not queue.mixed then return end
  if #lines <= MOST_ORDERED then
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

-- The tenant stands in no smaller order, and comes back. lines: all of them.
local function come_back(queue, tenant, tag, lines)
  if #lines <= MOST_ORDERED or not queue.mixed then return move_turn(queue, tenant, tag, lines) end
  redis.call('ZADD', Keys.turn(queue.at), tag, tenant)
  redis.call('SADD', Keys.broad(queue.at), tenant)
  name_broad(queue, tenant, tag, lines)
end

-- The tenant, whose tag this is, waits in one line more.
local function add_to_turn(queue, tenant, tag, line)
  if not queue.mixed then return end
  local lines = some_lines(queue, tenant)
  if #lines <= MOST_ORDERED then
    redis.call('ZADD', Keys.turn(queue.at, line:sub(2)), tag, tenant)
  elseif redis.call('SADD', Keys.broad(queue.at), tenant) == 0 then
    name_broad(queue, tenant, tag, { line })
  else
    for _, name in ipairs(lines) do redis.call('ZREM', Keys.turn(queue.at, name:sub(2)), tenant) end
    name_broad(queue, tenant, tag, lines)
  end
end

local function has_line_of(queue, tenant, model)
  for asked = 0, queue.band do
    if redis.call('ZSCORE', Keys.models(queue.at, tenant), asked .. model) then return true end
  end
  return false
end

-- A broad tenant waits in one line less, and stays broad. lines: some that are left.
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

-- The tenant waits in one line less. lines: what is left, as above.
local function drop_from_turn(queue, tenant, line, lines)
  if not queue.mixed then return end
  if #lines > MOST_ORDERED then return drop_broad(queue, tenant, line, lines) end
  local waits_on = false
  for _, name in ipairs(lines) do waits_on = waits_on or name:sub(2) == line:sub(2) end
  if not waits_on then redis.call('ZREM', Keys.turn(queue.at, line:sub(2)), tenant) end
  if #lines < MOST_ORDERED then return end
  unname_broad(queue, tenant)
  move_turn(queue, tenant, redis.call('ZSCORE', Keys.turn(queue.at), tenant), lines)
end

-- A tenant that waits for the model and is none of these (a set), with its queue and its score in the order that goes;
-- of many broad tenants some are looked at, by chance. nil if there is none.
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

-- No slot of the class may take a ticket of the broad tenant now. lines: all of them.
local function set_aside(queue, class, tenant, tag, lines)
  redis.call('ZREM', class_order(queue, class), tenant)
  for _, name in ipairs(lines) do
    if Classes.read_kept(queue.pool).models[name:sub(2)] then redis.call('ZADD', Keys.turn(queue.at, name:sub(2)), tag, tenant) end
  end
end

-- The model's circuit has closed: who was set aside for it stands where it stood before.
local function end_aside(pool, model)
  for _, queue in ipairs(pool.queues) do
    local order = Keys.turn(queue.at, model)
    local aside = queue.mixed and redis.call('ZINTER', 2, order, Keys.broad(queue.at), 'WEIGHTS', 1, 0, 'WITHSCORES') or {}
    for i = 1, #aside, 2 do
      name_broad(queue, aside[i], aside[i + 1], { '0' .. model })
      redis.call('ZREM', order, aside[i])
    end
  end
end

-- The class has its first server: its order names all broad tenants, until they are met.
local function begin_class(pool, class)
  for _, queue in ipairs(pool.queues) do
    if queue.mixed then
      redis.call('ZINTERSTORE', class_order(queue, class), 2, Keys.turn(queue.at), Keys.broad(queue.at), 'WEIGHTS', 1, 0)
    end
  end
end

local function end_class(pool, class)
  for _, queue in ipairs(pool.queues) do redis.call('UNLINK', class_order(queue, class)) end
end

return {
  add_to_turn = add_to_turn, all_lines = all_lines, another_tenant = another_tenant, begin_class = begin_class,
  class_order = class_order, come_back = come_back, drop_from_turn = drop_from_turn, end_aside = end_aside,
  end_class = end_class, move_turn = move_turn, set_aside = set_aside, some_lines = some_lines,
  unname_broad = unname_broad, MOST_ORDERED = MOST_ORDERED,
}
