-- Why: one bounded step of wiping the old index by its own registries (no SCAN). A registry is deleted after the keys
--   that it names, so that an interrupted wipe can continue.
-- Keys: asked, broad, circuits, class_servers, class_turn, classes, depth, estimates, expiry, forecast, foretold, free,
--   heads, held, kept, leases, line, marks, models, open, paid, parked, parked_depth, pending, placed, pool, pools,
--   rebuild, resting, running, server, servers, serving, settling, since, slot, states, tenants, ticking, turn, waits,
--   warm
-- Args:
--   owner: text
--   max_keys: number, approximate limit of deleted keys per call
-- Returns: 1 when the old index is gone, else 0
-- include: keys
-- include: call
-- include: index
-- include: slots
-- include: classes
-- include: leases
local owner, budget = args.owner, args.max_keys

local rebuild = redis.call('HMGET', Keys.rebuild(), 'run_id', 'replication', 'owner', 'phase')
if not Index.is_of_this_run(rebuild) or rebuild[3] ~= owner then
  return redis.error_reply('UNAVAILABLE another process rebuilds the index')
end
redis.call('HSET', Keys.rebuild(), 'at_us', Call.now)
if rebuild[4] == 'filling' then return 1 end

local function drop(name) budget = budget - redis.call('UNLINK', name) end

local function drop_tenant(queue, tenant)
  for _, name in ipairs(redis.call('ZRANGE', Keys.models(queue, tenant), 0, -1)) do
    drop(Keys.line(queue:sub(1, -3), name:sub(1, 1), name:sub(2), tenant))
  end
  drop(Keys.models(queue, tenant))
  drop(Keys.waits(tenant))
end

-- Each of these runs until the budget is spent, and returns true when it has finished.
local function drop_lines(queue)
  while budget > 0 do
    local tenants = redis.call('ZRANGE', Keys.turn(queue), 0, 99)
    if #tenants == 0 then return true end
    for _, tenant in ipairs(tenants) do
      drop_tenant(queue, tenant)
      redis.call('ZREM', Keys.turn(queue), tenant)
    end
  end
  return false
end

local function drop_parked(pool)
  for _, tenant in ipairs(redis.call('HKEYS', Keys.parked(pool))) do
    if budget <= 0 then return false end
    for band = 0, 2 do drop_tenant(pool .. ':' .. band, tenant) end
    redis.call('HDEL', Keys.parked(pool), tenant)
  end
  return true
end

local function drop_class(pool, class, models)
  for _, host in ipairs(redis.call('ZRANGE', Keys.open(pool, class), 0, -1)) do
    drop(Keys.free(pool, class, host))
    for model in models:gmatch('[^,]+') do drop(Keys.warm(pool, class, model, host)) end
  end
  for model in models:gmatch('[^,]+') do drop(Keys.serving(pool, model)) end
  for band = 0, 2 do drop(Keys.class_turn(pool .. ':' .. band, class)) end
  drop(Keys.open(pool, class))
  drop(Keys.class_servers(pool, class))
end

local function drop_pool(pool)
  if not drop_parked(pool) then return false end
  for band = 0, 2 do
    local queue = pool .. ':' .. band
    if not drop_lines(queue) then return false end
    for _, model in ipairs(redis.call('HKEYS', Keys.depth(pool))) do
      drop(Keys.turn(queue, model))
      drop(Keys.heads(queue, model))
    end
    drop(Keys.heads(queue))
    drop(Keys.broad(queue))
    drop(Keys.paid(queue))
    drop(Keys.since(queue))
  end
  for _, class in ipairs(Classes.all_classes(pool)) do drop_class(pool, class[1], class[2]) end
  drop_class(pool, 'adoptable', '')
  for _, name in ipairs({ Keys.pool(pool), Keys.classes(pool), Keys.states(pool), Keys.pending(pool), Keys.depth(pool),
    Keys.parked_depth(pool), Keys.marks(pool), Keys.placed(pool), Keys.circuits(pool), Keys.kept(pool), Keys.asked(pool),
    Keys.foretold(pool), Keys.forecast(pool) }) do
    drop(name)
  end
  redis.call('SREM', Keys.pools(), pool)
  return true
end

local function drop_servers()
  for _, name in ipairs(redis.call('SMEMBERS', Keys.servers())) do
    if budget <= 0 then return false end
    local server = Slots.read_server(name)
    if server then
      for index = 0, server.top - 1 do
        local slot = Slots.read_slot(name .. '/' .. index)
        if slot and slot.tenant then drop(Keys.running(slot.tenant)) end
        local follower = slot and Leases.read_follower(slot)
        if follower then drop(Keys.running(follower.tenant)) end
        drop(Keys.slot(name .. '/' .. index))
      end
      drop(Keys.states(server.pool))  -- a server that was never configured is in no pool's registry
    end
    redis.call('SREM', Keys.servers(), name)
    drop(Keys.server(name))
  end
  return true
end

for _, pool in ipairs(redis.call('SMEMBERS', Keys.pools())) do
  if not drop_pool(pool) then return 0 end
end
if not drop_servers() then return 0 end
for _, name in ipairs({ Keys.tenants(), Keys.estimates(), Keys.resting(), Keys.leases(), Keys.settling(), Keys.held(),
  Keys.expiry(), Keys.ticking() }) do
  drop(name)
end
redis.call('HSET', Keys.rebuild(), 'phase', 'filling')
return 1
