-- GPU servers as the line sees them. Servers of a pool that run the same models form a class, so that the next
-- ticket is looked for once per class and not once per server.
-- include: keys
-- include: time
local servers = {}

-- A class's id sorts by its number of models: the most specialised class first.
local function class_of(models)
  local _, commas = models:gsub(',', '')
  return string.format('%03d-%s', commas - 1, redis.sha1hex(models):sub(1, 12))
end

-- nil if unknown. gone: forgotten, or never configured; kept while something still holds one of its slots.
-- top: how many slots it ever had. models: ',a,b,', sorted.
function servers.read(name)
  local field = redis.call('HMGET', key.server(name), 'pool', 'host', 'class', 'slots', 'top', 'desired', 'gone')
  if not field[1] then return nil end
  return {
    name = name, pool = field[1], host = field[2], class = field[3], slots = tonumber(field[4]),
    top = tonumber(field[5]), desired = field[6], gone = field[7] == '1',
  }
end

function servers.of_slot(slot)
  local name, index = slot:match('^(.*)/(%d+)$')
  return name, tonumber(index)
end

function servers.models(server) return redis.call('HGET', key.classes(server.pool), server.class) end

-- The pool's classes, most specialised first: {{class, models}, ...}.
function servers.classes(pool)
  local flat, found = redis.call('HGETALL', key.classes(pool)), {}
  for i = 1, #flat, 2 do found[#found + 1] = { flat[i], flat[i + 1] } end
  if #found > 1 then table.sort(found, function(a, b) return a[1] < b[1] end) end
  return found
end

local function each_model(models, act)
  for model in models:gmatch('[^,]+') do act(model) end
end

-- Takes the server out of its class; the class goes with its last server.
function servers.withdraw(server)
  if server.gone then return end
  local models = servers.models(server)
  each_model(models, function(model) redis.call('SREM', key.serving(server.pool, model), server.name) end)
  redis.call('SREM', key.class_servers(server.pool, server.class), server.name)
  if redis.call('EXISTS', key.class_servers(server.pool, server.class)) == 0 then
    redis.call('HDEL', key.classes(server.pool), server.class)
  end
end

function servers.enlist(name, pool, host, slots, top, desired, models)
  local class = class_of(models)
  redis.call('SADD', key.servers, name)
  redis.call('SADD', key.pools, pool)
  redis.call('HSET', key.server(name), 'pool', pool, 'host', host, 'class', class, 'slots', slots, 'top', top,
    'desired', desired, 'gone', '0')
  redis.call('HSET', key.classes(pool), class, models)
  redis.call('SADD', key.class_servers(pool, class), name)
  if desired == 'on' then
    each_model(models, function(model) redis.call('SADD', key.serving(pool, model), name) end)
  end
end

-- A server that is only known by something that holds one of its slots.
function servers.note(name, pool, index)
  local server = servers.read(name)
  if not server then
    redis.call('SADD', key.servers, name)
    redis.call('HSET', key.server(name), 'pool', pool, 'host', '', 'class', '', 'slots', 0, 'top', index + 1,
      'desired', 'off', 'gone', '1')
  elseif server.top <= index then
    redis.call('HSET', key.server(name), 'top', index + 1)
  end
end

function servers.is_resting(name) return (tonumber(redis.call('ZSCORE', key.resting, name)) or 0) > now end

-- The moment at which any lease of this server last began or ended.
function servers.touch(name) redis.call('HSET', key.server(name), 'changed_us', now) end
