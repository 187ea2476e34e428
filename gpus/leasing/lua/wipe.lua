-- Why: one bounded step of wiping the old index, walking its own registries (no SCAN). A registry goes after what
--   it names, so that a wipe that broke off can go on.
-- Keys: KEYS[1] prefix
-- Args: clock, owner, roughly how many keys at most
-- Returns: 1 when the old index is gone, else 0
-- include: gate
-- include: classes
-- include: slots
-- include: leases
local owner, budget = ARGV[2], tonumber(ARGV[3])

local rebuild = redis.call('HMGET', key('rebuild'), 'run_id', 'replication', 'owner', 'phase')
if not is_of_this_run(rebuild) or rebuild[3] ~= owner then
  return redis.error_reply('UNAVAILABLE somebody else rebuilds the index')
end
redis.call('HSET', key('rebuild'), 'at_us', now)
if rebuild[4] == 'filling' then return 1 end

local function drop(name) budget = budget - redis.call('UNLINK', name) end

local function drop_tenant(queue, tenant)
  for _, name in ipairs(redis.call('ZRANGE', key('models', queue, tenant), 0, -1)) do
    drop(key('line', queue:sub(1, -2) .. name:sub(1, 1), name:sub(2), tenant))
  end
  drop(key('models', queue, tenant))
  drop(key('waits', tenant))
end

-- Each of these goes on until the budget is spent, and says whether it came to its end.
local function drop_lines(queue)
  while budget > 0 do
    local tenants = redis.call('ZRANGE', key('turn', queue), 0, 99)
    if #tenants == 0 then return true end
    for _, tenant in ipairs(tenants) do
      drop_tenant(queue, tenant)
      redis.call('ZREM', key('turn', queue), tenant)
    end
  end
  return false
end

local function drop_parked(pool)
  for _, tenant in ipairs(redis.call('HKEYS', key('parked', pool))) do
    if budget <= 0 then return false end
    for band = 0, 2 do drop_tenant(pool .. ':' .. band, tenant) end
    redis.call('HDEL', key('parked', pool), tenant)
  end
  return true
end

local function drop_class(pool, class, models)
  for _, host in ipairs(redis.call('ZRANGE', key('open', pool, class), 0, -1)) do
    drop(key('free', pool, class, host))
    for model in models:gmatch('[^,]+') do drop(key('warm', pool, class, model, host)) end
  end
  for model in models:gmatch('[^,]+') do drop(key('serving', pool, model)) end
  for band = 0, 2 do drop(key('class_turn', pool .. ':' .. band, class)) end
  drop(key('open', pool, class))
  drop(key('class_servers', pool, class))
end

local function drop_pool(pool)
  if not drop_parked(pool) then return false end
  for band = 0, 2 do
    local queue = pool .. ':' .. band
    if not drop_lines(queue) then return false end
    for _, model in ipairs(redis.call('HKEYS', key('depth', pool))) do
      drop(key('turn', queue, model))
      drop(key('heads', queue, model))
    end
    drop(key('heads', queue))
    drop(key('broad', queue))
    drop(key('paid', queue))
    drop(key('since', queue))
  end
  for _, class in ipairs(all_classes(pool)) do drop_class(pool, class[1], class[2]) end
  drop_class(pool, 'adoptable', '')
  for _, kind in ipairs({ 'pool', 'classes', 'states', 'pending', 'depth', 'parked_depth', 'marks', 'circuits', 'kept', 'asked', 'foretold',
    'forecast' }) do
    drop(key(kind, pool))
  end
  redis.call('SREM', key('pools'), pool)
  return true
end

local function drop_servers()
  for _, name in ipairs(redis.call('SMEMBERS', key('servers'))) do
    if budget <= 0 then return false end
    local server = read_server(name)
    if server then
      for index = 0, server.top - 1 do
        local slot = read_slot(name .. '/' .. index)
        if slot and slot.tenant then drop(key('running', slot.tenant)) end
        local follower = slot and read_follower(slot)
        if follower then drop(key('running', follower.tenant)) end
        drop(key('slot', name .. '/' .. index))
      end
      drop(key('states', server.pool))  -- of a server that was never configured: no pool names it
    end
    redis.call('SREM', key('servers'), name)
    drop(key('server', name))
  end
  return true
end

for _, pool in ipairs(redis.call('SMEMBERS', key('pools'))) do
  if not drop_pool(pool) then return 0 end
end
if not drop_servers() then return 0 end
for _, kind in ipairs({ 'tenants', 'estimates', 'resting', 'leases', 'settling', 'held', 'expiry', 'ticking' }) do
  drop(key(kind))
end
redis.call('HSET', key('rebuild'), 'phase', 'filling')
return 1
