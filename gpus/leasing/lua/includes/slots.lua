-- Slots and the lists of those that can be given out. States: free, leased, adoptable, settling, quarantined, off.
-- A slot is listed exactly while it is adoptable, or free on a server that does not rest; every list is by
-- (class, host), adoptable slots under a class of that name, and `open` counts each list by host.
-- include: keys
-- include: time
-- include: servers

-- nil if unknown. home: the pool of its server; since_us: when a lease of it last began or ended; then the packed
-- lease (or the last one): pool: the pool it was given for; asked: who asked to adopt it, until it is taken over.
local function read_slot(name)
  local field = redis.call('HMGET', key.slot(name), 'state', 'home', 'warm', 'fence', 'since_us', 'lease')
  if not field[1] then return nil end
  local pool, job, attempt, epoch, model, tenant, priority, estimate, leased_us, worker, asked, host
  if field[6] then
    pool, job, attempt, epoch, model, tenant, priority, estimate, leased_us, worker, asked, host =
      cmsgpack.unpack(field[6])
  end
  return {
    name = name, state = field[1], home = field[2], warm = field[3], fence = tonumber(field[4]) or 0,
    since_us = tonumber(field[5]) or 0, pool = pool, job = job, attempt = attempt, epoch = epoch, model = model,
    tenant = tenant, priority = priority, estimate = estimate, leased_us = leased_us, worker = worker,
    asked = asked, host = host,
  }
end

local function pack_lease(slot)
  return cmsgpack.pack(slot.pool, slot.job, slot.attempt, slot.epoch, slot.model, slot.tenant, slot.priority,
    slot.estimate, slot.leased_us, slot.worker, slot.asked, slot.host)
end

local function write_lease(slot) redis.call('HSET', key.slot(slot.name), 'lease', pack_lease(slot)) end

-- A slot that nobody has heard of yet; it is stored with its first state.
local function new_slot(name, home) return { name = name, home = home, fence = 0, since_us = now } end

local function count_state(slot, state)
  if slot.state == state then return end
  if slot.state then redis.call('HINCRBY', key.states(slot.home), slot.state, -1) end
  redis.call('HINCRBY', key.states(slot.home), state, 1)
  slot.state = state
end

local function set_state(slot, state, since_us)
  count_state(slot, state)
  slot.since_us = since_us or now
  redis.call('HSET', key.slot(slot.name), 'state', state, 'home', slot.home, 'since_us', slot.since_us)
end

local function list_slot(pool, class, host, slot)
  redis.call('ZADD', key.free(pool, class, host), slot.since_us, slot.name)
  redis.call('ZADD', key.open(pool, class), redis.call('ZCARD', key.free(pool, class, host)), host)
end

local function unlist_slot(pool, class, host, slot)
  if redis.call('ZREM', key.free(pool, class, host), slot.name) == 0 then return end
  local left = redis.call('ZCARD', key.free(pool, class, host))
  if left > 0 then
    redis.call('ZADD', key.open(pool, class), left, host)
  else
    redis.call('ZREM', key.open(pool, class), host)
  end
end

-- Puts a free or adoptable slot where claims find it; true if they do.
local function show_slot(slot, server)
  if slot.state == 'adoptable' then
    list_slot(server.pool, 'adoptable', server.host, slot)
    return true
  end
  if slot.state ~= 'free' or server.rests_until > now then return false end
  list_slot(server.pool, server.class, server.host, slot)
  if slot.warm and server.models:find(',' .. slot.warm .. ',', 1, true) then
    redis.call('ZADD', key.warm(server.pool, server.class, slot.warm, server.host), slot.since_us, slot.name)
  end
  return true
end

local function hide_slot(slot, server)
  if slot.state == 'adoptable' then
    unlist_slot(server.pool, 'adoptable', server.host, slot)
  elseif slot.state == 'free' then
    unlist_slot(server.pool, server.class, server.host, slot)
    if slot.warm then
      redis.call('ZREM', key.warm(server.pool, server.class, slot.warm, server.host), slot.name)
    end
  end
end

local function delete_slot(slot)
  redis.call('HINCRBY', key.states(slot.home), slot.state, -1)
  redis.call('DEL', key.slot(slot.name))
end

-- Forgets a gone server once nothing holds any of its slots.
local function bury_server(server)
  for index = 0, server.top - 1 do
    if redis.call('EXISTS', key.slot(server.name .. '/' .. index)) == 1 then return end
  end
  redis.call('DEL', key.server(server.name))
  redis.call('SREM', key.servers(), server.name)
  redis.call('ZREM', key.resting(), server.name)
end

local function is_usable(server, index)
  return not server.gone and server.desired == 'on' and index < server.slots
end

-- Nothing holds the slot any more: it is free, off, or gone with its server. True if it can be claimed now.
-- since_us: when its last lease ended, if that was not now.
local function idle_slot(slot, since_us)
  local name, index = split_slot(slot.name)
  local server = read_server(name)
  if server.gone then
    delete_slot(slot)
    bury_server(server)
    return false, server
  end
  redis.call('HDEL', key.slot(slot.name), 'lease')
  set_state(slot, is_usable(server, index) and 'free' or 'off', since_us)
  return show_slot(slot, server), server
end

local function each_slot(server, act)
  for index = 0, server.top - 1 do
    local slot = read_slot(server.name .. '/' .. index)
    if slot then act(slot, index) end
  end
end

-- The server gets no lease until then; its free slots leave the lists meanwhile.
local function rest(server, until_us)
  each_slot(server, function(slot)
    if slot.state == 'free' then hide_slot(slot, server) end
  end)
  server.rests_until = math.max(server.rests_until, until_us)
  redis.call('ZADD', key.resting(), server.rests_until, server.name)
  write_server(server)
end

-- Lists the free slots of servers whose rest is over; a few servers each time keep a claim short.
local function end_rests(limit)
  for _, name in ipairs(redis.call('ZRANGEBYSCORE', key.resting(), '-inf', now, 'LIMIT', 0, limit)) do
    redis.call('ZREM', key.resting(), name)
    local server = read_server(name)
    if not server.gone then
      each_slot(server, function(slot)
        if slot.state == 'free' then show_slot(slot, server) end
      end)
    end
  end
end
