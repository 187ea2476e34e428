-- Slots and the lists of those that can be given out. States: free, leased, adoptable, settling, quarantined, off.
-- A slot is listed exactly while it is adoptable, or free on a server that does not rest; every list is by
-- (class, host), adoptable slots under a class of that name, and `open` counts each list by host.
-- include: keys
-- include: time
-- include: servers
local slots = {}

-- nil if unknown. home: the pool of its server; pool: the pool of its lease.
function slots.read(name)
  local field = redis.call('HMGET', key.slot(name), 'state', 'home', 'warm', 'fence', 'freed_us', 'pool', 'job',
    'attempt', 'epoch', 'model', 'tenant', 'priority', 'estimate', 'leased_us', 'worker', 'asked', 'host')
  if not field[1] then return nil end
  return {
    name = name, state = field[1], home = field[2], warm = field[3], fence = tonumber(field[4]) or 0,
    freed_us = tonumber(field[5]) or 0, pool = field[6], job = field[7], attempt = field[8],
    epoch = tonumber(field[9]) or 0, model = field[10], tenant = field[11], priority = tonumber(field[12]),
    estimate = tonumber(field[13]) or 0, leased_us = tonumber(field[14]) or 0, worker = field[15] or '',
    asked = field[16], host = field[17],
  }
end

-- A slot that nobody has heard of yet; its first state is set with it.
function slots.create(name, home) return { name = name, home = home, fence = 0, freed_us = now, epoch = 0 } end

function slots.set_state(slot, state)
  if slot.state then redis.call('HINCRBY', key.states(slot.home), slot.state, -1) end
  redis.call('HINCRBY', key.states(slot.home), state, 1)
  redis.call('HSET', key.slot(slot.name), 'state', state, 'home', slot.home)
  slot.state = state
end

local function list(pool, class, host, slot, score)
  redis.call('ZADD', key.free(pool, class, host), score, slot)
  redis.call('ZADD', key.open(pool, class), redis.call('ZCARD', key.free(pool, class, host)), host)
end

local function unlist(pool, class, host, slot)
  if redis.call('ZREM', key.free(pool, class, host), slot) == 0 then return end
  local left = redis.call('ZCARD', key.free(pool, class, host))
  if left > 0 then
    redis.call('ZADD', key.open(pool, class), left, host)
  else
    redis.call('ZREM', key.open(pool, class), host)
  end
end

-- Puts a free or adoptable slot where claims find it; true if they do.
function slots.show(slot, server)
  if slot.state == 'adoptable' then
    list(server.pool, 'adoptable', server.host, slot.name, slot.freed_us)
    return true
  end
  if slot.state ~= 'free' or servers.is_resting(server.name) then return false end
  list(server.pool, server.class, server.host, slot.name, slot.freed_us)
  if slot.warm then
    local models = servers.models(server)
    if models and models:find(',' .. slot.warm .. ',', 1, true) then
      redis.call('ZADD', key.warm(server.pool, server.class, slot.warm, server.host), slot.freed_us, slot.name)
    end
  end
  return true
end

function slots.hide(slot, server)
  if slot.state == 'adoptable' then
    unlist(server.pool, 'adoptable', server.host, slot.name)
  elseif slot.state == 'free' then
    unlist(server.pool, server.class, server.host, slot.name)
    if slot.warm then
      redis.call('ZREM', key.warm(server.pool, server.class, slot.warm, server.host), slot.name)
    end
  end
end

function slots.delete(slot)
  redis.call('HINCRBY', key.states(slot.home), slot.state, -1)
  redis.call('DEL', key.slot(slot.name))
end

-- Forgets a gone server once nothing holds any of its slots.
function slots.bury(server)
  for index = 0, server.top - 1 do
    if redis.call('EXISTS', key.slot(server.name .. '/' .. index)) == 1 then return end
  end
  redis.call('DEL', key.server(server.name))
  redis.call('SREM', key.servers, server.name)
  redis.call('ZREM', key.resting, server.name)
end

function slots.is_usable(server, index)
  return server ~= nil and not server.gone and server.desired == 'on' and index < server.slots
end

-- Nothing holds the slot any more: it is free, off, or gone with its server. True if it can be claimed now.
function slots.idle(slot)
  local name, index = servers.of_slot(slot.name)
  local server = servers.read(name)
  if not server or server.gone then
    slots.delete(slot)
    if server then slots.bury(server) end
    return false, server
  end
  redis.call('HDEL', key.slot(slot.name), 'pool', 'job', 'attempt', 'epoch', 'model', 'tenant', 'priority',
    'estimate', 'leased_us', 'worker', 'asked', 'host')
  redis.call('HSET', key.slot(slot.name), 'freed_us', now)
  slot.freed_us = now
  slots.set_state(slot, slots.is_usable(server, index) and 'free' or 'off')
  return slots.show(slot, server), server
end

function slots.each_of(server, act)
  for index = 0, server.top - 1 do
    local slot = slots.read(server.name .. '/' .. index)
    if slot then act(slot, index) end
  end
end

-- The server gets no lease until then; its free slots leave the lists meanwhile.
function slots.rest(server, until_us)
  slots.each_of(server, function(slot)
    if slot.state == 'free' then slots.hide(slot, server) end
  end)
  redis.call('ZADD', key.resting, 'GT', until_us, server.name)
end

-- Lists the free slots of servers whose rest is over; a few servers each time keep a claim short.
function slots.end_rests(limit)
  for _, name in ipairs(redis.call('ZRANGEBYSCORE', key.resting, '-inf', now, 'LIMIT', 0, limit)) do
    redis.call('ZREM', key.resting, name)
    local server = servers.read(name)
    if server and not server.gone then
      slots.each_of(server, function(slot)
        if slot.state == 'free' then slots.show(slot, server) end
      end)
    end
  end
end
