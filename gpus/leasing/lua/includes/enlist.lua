-- Adds servers to their classes and removes them. A class exists while it has a server.
-- include: keys
-- include: call
-- include: pools
-- include: turns

-- An id that sorts by the number of models: the most specialised class first.
local function class_of(models)
  local _, commas = models:gsub(',', '')
  return string.format('%03d-%s', commas - 1, redis.sha1hex(models):sub(1, 12))
end

-- Adds the server to its class and, if it is on, to the servers of its models.
local function enlist_server(server)
  redis.call('SADD', Keys.class_servers(server.pool, server.class), server.name)
  if redis.call('HSET', Keys.classes(server.pool), server.class, server.models) == 1 then
    Call.class_lists[server.pool] = nil
    Turns.begin_class(Pools.load_pool(server.pool), server.class)
  end
  if server.desired ~= 'on' then return end
  for model in server.models:gmatch('[^,]+') do
    redis.call('SADD', Keys.serving(server.pool, model), server.name)
  end
end

-- Removes the server from its class and from the servers of its models.
local function withdraw_server(server)
  if server.gone then return end
  for model in server.models:gmatch('[^,]+') do
    redis.call('SREM', Keys.serving(server.pool, model), server.name)
  end
  redis.call('SREM', Keys.class_servers(server.pool, server.class), server.name)
end

-- Deletes the class if it has no server left. Called after a withdrawn server was added to its next class.
local function leave_class(pool, class)
  if redis.call('EXISTS', Keys.class_servers(pool, class)) == 1 then return end
  redis.call('HDEL', Keys.classes(pool), class)
  Call.class_lists[pool] = nil
  Turns.end_class(Pools.load_pool(pool), class)
end

return {
  class_of = class_of, enlist_server = enlist_server, leave_class = leave_class, withdraw_server = withdraw_server,
}
