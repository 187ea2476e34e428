-- GPU servers as the line sees them, each one packed value. Servers of a pool that run the same models form a
-- class, so that the next ticket is looked for once per class and not once per server.
-- include: keys
-- include: time

-- A class's id sorts by its number of models: the most specialised class first.
local function class_of(models)
  local _, commas = models:gsub(',', '')
  return string.format('%03d-%s', commas - 1, redis.sha1hex(models):sub(1, 12))
end

-- nil if unknown. slots: how many may be used; top: how many there ever were; models: ',a,b,', sorted; rests_until:
-- µs. gone: forgotten or never configured, kept while something still holds one of its slots.
local function read_server(name)
  local packed = redis.call('GET', key.server(name))
  if not packed then return nil end
  local pool, host, models, class, slots, top, desired, rests_until, gone = cmsgpack.unpack(packed)
  return {
    name = name, pool = pool, host = host, models = models, class = class, slots = slots, top = top,
    desired = desired, rests_until = rests_until, gone = gone,
  }
end

local function write_server(server)
  redis.call('SADD', key.servers(), server.name)
  redis.call('SET', key.server(server.name), cmsgpack.pack(server.pool, server.host, server.models, server.class,
    server.slots, server.top, server.desired, server.rests_until, server.gone))
end

local function split_slot(slot)
  local server, index = slot:match('^(.*)/(%d+)$')
  return server, tonumber(index)
end

local function server_of(slot) return read_server((split_slot(slot))) end

-- The pool's classes, most specialised first: {{class, models}, ...}.
local function read_classes(pool)
  local flat, classes = redis.call('HGETALL', key.classes(pool)), {}
  for i = 1, #flat, 2 do classes[#classes + 1] = { flat[i], flat[i + 1] } end
  if #classes > 1 then table.sort(classes, function(a, b) return a[1] < b[1] end) end
  return classes
end

-- Puts the server into its class, and as one that serves its models if it is on.
local function enlist_server(server)
  redis.call('HSET', key.classes(server.pool), server.class, server.models)
  redis.call('SADD', key.class_servers(server.pool, server.class), server.name)
  if server.desired ~= 'on' then return end
  for model in server.models:gmatch('[^,]+') do
    redis.call('SADD', key.serving(server.pool, model), server.name)
  end
end

-- The class goes with its last server.
local function withdraw_server(server)
  if server.gone then return end
  for model in server.models:gmatch('[^,]+') do
    redis.call('SREM', key.serving(server.pool, model), server.name)
  end
  redis.call('SREM', key.class_servers(server.pool, server.class), server.name)
  if redis.call('EXISTS', key.class_servers(server.pool, server.class)) == 0 then
    redis.call('HDEL', key.classes(server.pool), server.class)
  end
end

-- The server of a slot; if nobody has heard of it, one that is only known by what holds this slot.
local function note_server(name, pool, index)
  local server = read_server(name) or {
    name = name, pool = pool, host = '', models = ',', class = '', slots = 0, top = 0, desired = 'off',
    rests_until = 0, gone = true,
  }
  if server.top <= index then
    server.top = index + 1
    write_server(server)
  end
  return server
end
