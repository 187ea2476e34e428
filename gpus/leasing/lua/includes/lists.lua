-- The lists of slots that can be given out. A slot is listed exactly while it is adoptable, or free on a server that
-- does not rest; of a server whose circuit is half open, only the slot that tries; every list is by (class, host), adoptable slots under a class of that name, and `open` counts each
-- list by host. The score of an adoptable slot is the time from which claims may take it.
-- include: keys
-- include: servers
-- include: slots

local function list_slot(pool, class, host, slot, from_us)
  redis.call('ZADD', Keys.free(pool, class, host), from_us, slot.name)
  redis.call('ZADD', Keys.open(pool, class), redis.call('ZCARD', Keys.free(pool, class, host)), host)
end

local function unlist_slot(pool, class, host, slot)
  if redis.call('ZREM', Keys.free(pool, class, host), slot.name) == 0 then return end
  local left = redis.call('ZCARD', Keys.free(pool, class, host))
  if left > 0 then
    redis.call('ZADD', Keys.open(pool, class), left, host)
  else
    redis.call('ZREM', Keys.open(pool, class), host)
  end
end

-- Puts a free or adoptable slot where claims find it; true if they do.
local function show_slot(slot, server)
  if slot.state == 'adoptable' then
    list_slot(server.pool, 'adoptable', server.host, slot, math.max(slot.since_us, slot.rests_until or 0))
    return true
  end
  if slot.state ~= 'free' or server.rests_until > now then return false end
  if server.opens > 0 and server.probe ~= slot.name then return false end
  list_slot(server.pool, server.class, server.host, slot, slot.since_us)
  if slot.warm and server.models:find(',' .. slot.warm .. ',', 1, true) then
    redis.call('ZADD', Keys.warm(server.pool, server.class, slot.warm, server.host), slot.since_us, slot.name)
  end
  return true
end

local function hide_slot(slot, server)
  if slot.state == 'adoptable' then
    unlist_slot(server.pool, 'adoptable', server.host, slot)
  elseif slot.state == 'free' then
    unlist_slot(server.pool, server.class, server.host, slot)
    if slot.warm then
      redis.call('ZREM', Keys.warm(server.pool, server.class, slot.warm, server.host), slot.name)
    end
  end
end
