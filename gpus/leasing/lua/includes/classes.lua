-- Servers of a pool that run the same models form a class, so that the next ticket is looked for once per class and
-- not once per server.
-- include: keys
-- include: servers
-- include: kept

-- An id that sorts by the number of models: the most specialised class first.
local function class_of(models)
  local _, commas = models:gsub(',', '')
  return string.format('%03d-%s', commas - 1, redis.sha1hex(models):sub(1, 12))
end

-- The pool's classes, most specialised first: {{class, models}, ...}; also models that nobody may run now.
local function all_classes(pool)
  local flat, classes = redis.call('HGETALL', key('classes', pool)), {}
  for i = 1, #flat, 2 do classes[#classes + 1] = { flat[i], flat[i + 1] } end
  if #classes > 1 then table.sort(classes, function(a, b) return a[1] < b[1] end) end
  return classes
end

-- The same, without models that are kept back.
local function read_classes(pool)
  local classes = all_classes(pool)
  for _, class in ipairs(classes) do class[2] = without_kept(pool, class[2]) end
  return classes
end

-- Puts the server into its class, and among those that serve its models if it is on.
local function enlist_server(server)
  redis.call('HSET', key('classes', server.pool), server.class, server.models)
  redis.call('SADD', key('class_servers', server.pool, server.class), server.name)
  if server.desired ~= 'on' then return end
  for model in server.models:gmatch('[^,]+') do
    redis.call('SADD', key('serving', server.pool, model), server.name)
  end
end

-- The class goes with its last server.
local function withdraw_server(server)
  if server.gone then return end
  for model in server.models:gmatch('[^,]+') do
    redis.call('SREM', key('serving', server.pool, model), server.name)
  end
  redis.call('SREM', key('class_servers', server.pool, server.class), server.name)
  if redis.call('EXISTS', key('class_servers', server.pool, server.class)) == 0 then
    redis.call('HDEL', key('classes', server.pool), server.class)
  end
end
