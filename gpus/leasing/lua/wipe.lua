-- Why: one bounded step of wiping the old index, walking its own registries (no SCAN). A registry goes after what
-- it names, so that a wipe that broke off can go on.
-- Keys: KEYS[1] prefix
-- Args: clock, owner, roughly how many keys at most
-- Returns: 1 when the old index is gone, else 0
-- include: gate
-- include: servers
-- include: time
local owner, budget = ARGV[2], tonumber(ARGV[3])

local rebuild = redis.call('HMGET', key.rebuild, 'run_id', 'owner', 'phase')
if rebuild[1] ~= RUN_ID or rebuild[2] ~= owner then
  return redis.error_reply('UNAVAILABLE somebody else rebuilds the index')
end
redis.call('HSET', key.rebuild, 'at_us', now)
if rebuild[3] == 'filling' then return 1 end

local function drop(name)
  redis.call('UNLINK', name)
  budget = budget - 1
end

-- Each of these goes on until the budget is spent, and says whether it came to its end.
local function drop_lines(pool, band)
  while budget > 0 do
    local tenants = redis.call('ZRANGE', key.turn(pool, band), 0, 99)
    if #tenants == 0 then return true end
    for _, tenant in ipairs(tenants) do
      for _, model in ipairs(redis.call('ZRANGE', key.models(pool, band, tenant), 0, -1)) do
        drop(key.line(pool, band, model, tenant))
      end
      drop(key.models(pool, band, tenant))
      redis.call('ZREM', key.turn(pool, band), tenant)
    end
  end
  return false
end

local function drop_class(pool, class, models)
  for _, host in ipairs(redis.call('ZRANGE', key.open(pool, class), 0, -1)) do
    drop(key.free(pool, class, host))
    for model in models:gmatch('[^,]+') do drop(key.warm(pool, class, model, host)) end
  end
  for model in models:gmatch('[^,]+') do drop(key.serving(pool, model)) end
  drop(key.open(pool, class))
  drop(key.class_servers(pool, class))
end

local function drop_pool(pool)
  for band = 0, 2 do
    if not drop_lines(pool, band) then return false end
  end
  for _, field in ipairs(redis.call('HKEYS', key.depth(pool))) do
    local band, model = field:match('^(%d):(.+)$')
    if band then
      drop(key.turn_of(pool, band, model))
      drop(key.heads_of(pool, band, model))
    end
  end
  for band = 0, 2 do
    drop(key.heads(pool, band))
    drop(key.paid(pool, band))
  end
  for _, class in ipairs(servers.classes(pool)) do drop_class(pool, class[1], class[2]) end
  drop_class(pool, 'adoptable', '')
  for _, of_pool in ipairs({ 'pool', 'classes', 'states', 'pending', 'depth', 'marks' }) do
    drop(key[of_pool](pool))
  end
  redis.call('SREM', key.pools, pool)
  return true
end

local function drop_servers()
  for _, name in ipairs(redis.call('SMEMBERS', key.servers)) do
    if budget <= 0 then return false end
    local server = servers.read(name)
    for index = 0, (server and server.top or 0) - 1 do drop(key.slot(name .. '/' .. index)) end
    if server then drop(key.states(server.pool)) end
    drop(key.server(name))
    redis.call('SREM', key.servers, name)
  end
  return true
end

local function drop_ends()
  while budget > 0 do
    local attempts = redis.call('ZRANGE', key.expiry, 0, 99)
    if #attempts == 0 then return true end
    for _, attempt in ipairs(attempts) do drop(key.settling(attempt)) end
    redis.call('ZREM', key.expiry, unpack(attempts))
  end
  return false
end

for _, pool in ipairs(redis.call('SMEMBERS', key.pools)) do
  if not drop_pool(pool) then return 0 end
end
if not drop_servers() or not drop_ends() then return 0 end
for _, single in ipairs({ 'weights', 'estimates', 'resting', 'leases', 'held', 'ticking' }) do drop(key[single]) end
redis.call('HSET', key.rebuild, 'phase', 'filling')
return 1
