-- Which slots claims may be given: the lists of free and adoptable slots, and what takes a slot out of them.
-- include: keys
-- include: call
-- include: slots

-- A slot is listed exactly while it is adoptable, or free on a server that does not rest. Of a server whose circuit is
-- half open only the slot that tries is listed. Each list is of one class and host; adoptable slots have a class of
-- that name. `open` counts each list by host. The score of an adoptable slot is the time from which claims may take
-- it.

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
  if slot.state ~= 'free' or server.rests_until > Call.now then return false end
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

-- How many slots of a server may be given out. Its count is a number of slots, not of places: what still runs above a
-- count that was lowered takes the place of as many below, and a slot up there vanishes when it ends.

local function is_idle(slot) return slot.state == 'free' or slot.state == 'off' end

-- Whether a held slot may go straight on to another job.
local function has_room(server, index)
  if server.gone or server.desired ~= 'on' or index >= server.slots or server.opens > 0 then return false end
  if server.top <= server.slots then return true end  -- nothing is above the count
  local others = 0
  Slots.each_slot(server, function(slot, at)
    if at ~= index and not is_idle(slot) then others = others + 1 end
  end)
  return others < server.slots
end

-- Whether its slot may, to one of the same pool and driver, without being free in between.
local function may_go_on(slot, server, index)
  return has_room(server, index) and server.pool == slot.pool and server.host == slot.host and server.rests_until <= Call.now
end

-- Decides which idle slots may be given out, lowest first. Returns how many can be claimed that could not before.
local function arrange_slots(server)
  if server.gone then return 0 end
  local room, opened, top = server.desired == 'on' and server.slots or 0, 0, server.slots
  Slots.each_slot(server, function(slot)
    if not is_idle(slot) then room = room - 1 end
  end)
  Slots.each_slot(server, function(slot, index)
    if index < server.slots then
      if not is_idle(slot) then return end
      local state = room > 0 and 'free' or 'off'
      room = room - 1
      if slot.state == state then return end
      hide_slot(slot, server)
      Slots.set_state(slot, state, slot.since_us)
      if show_slot(slot, server) then opened = opened + 1 end
    elseif is_idle(slot) then
      hide_slot(slot, server)
      Slots.delete_slot(slot)
    else
      top = index + 1
    end
  end)
  if top < server.top then
    server.top = top
    Slots.save_server(server)
  end
  return opened
end

-- Servers that said they are busy, or whose circuit opened, rest for a while: their free slots leave the lists
-- meanwhile.

local LOOK_AGAIN_US = 2000000

local function rest_server(server, until_us)
  Slots.each_slot(server, function(slot)
    if slot.state == 'free' then hide_slot(slot, server) end
  end)
  server.rests_until = math.max(server.rests_until, until_us)
  redis.call('ZADD', Keys.resting(), server.rests_until, server.name)
  Slots.save_server(server)
end

local function show_free_slots(server)
  local shown = 0
  Slots.each_slot(server, function(slot)
    if slot.state == 'free' and show_slot(slot, server) then shown = shown + 1 end
  end)
  return shown
end

-- Half open: one slot tries. It is looked at again and again, because the slot may be taken away meanwhile, or none is
-- free yet.
local function try_one_slot(server)
  redis.call('ZADD', Keys.resting(), Call.now + LOOK_AGAIN_US, server.name)
  local probe = server.probe and Slots.read_slot(server.probe)
  if probe and probe.state ~= 'off' and probe.state ~= 'quarantined' then
    show_slot(probe, server)
    return
  end
  server.probe = nil
  Slots.each_slot(server, function(slot)
    if server.probe or slot.state ~= 'free' then return end
    server.probe = slot.name
    show_slot(slot, server)
  end)
  Slots.save_server(server)
end

-- Lists the free slots of servers whose rest is over; a few servers each time keep a claim short.
local function end_rests(limit)
  for _, name in ipairs(redis.call('ZRANGEBYSCORE', Keys.resting(), '-inf', Call.now, 'LIMIT', 0, limit)) do
    local server = Slots.read_server(name)
    if server.opens > 0 and not server.gone then
      try_one_slot(server)
    else
      redis.call('ZREM', Keys.resting(), name)
      if not server.gone then show_free_slots(server) end
    end
  end
end

-- A slot that is not held any more becomes free, off, or is deleted; so is a gone server after its last slot.

-- Forgets a gone server once nothing holds any of its slots.
local function bury_server(server)
  for index = 0, server.top - 1 do
    if redis.call('EXISTS', Keys.slot(server.name .. '/' .. index)) == 1 then return end
  end
  redis.call('DEL', Keys.server(server.name))
  redis.call('SREM', Keys.servers(), server.name)
  redis.call('ZREM', Keys.resting(), server.name)
end

-- The slot is free, off, or gone with its server. True if a slot can be claimed now because of that; also its server.
local function idle_slot(slot, since_us)
  local server = Slots.read_server((Slots.split_slot(slot.name)))
  if server.gone then
    Slots.delete_slot(slot)
    bury_server(server)
    return false, server
  end
  slot.pool, slot.job, slot.attempt, slot.epoch, slot.model, slot.tenant = nil, nil, nil, nil, nil, nil
  slot.priority, slot.estimate, slot.leased_us, slot.worker, slot.asked, slot.host = nil, nil, nil, nil, nil, nil
  slot.band, slot.dues = nil, nil
  if server.top > server.slots then
    Slots.set_state(slot, 'off', since_us)
    return arrange_slots(server) > 0, server
  end
  Slots.set_state(slot, server.desired == 'on' and 'free' or 'off', since_us)
  return show_slot(slot, server), server
end

-- An adoptable lease: its holder is gone, its run goes on, and the next claim takes it over.

-- The slot must not be listed yet.
local function make_adoptable(slot)
  redis.call('ZREM', Keys.expiry(), slot.attempt)
  Slots.set_state(slot, 'adoptable')
  show_slot(slot, Slots.read_server((Slots.split_slot(slot.name))))
end

-- It has a holder again; the caller extends the lease.
local function unmake_adoptable(slot)
  hide_slot(slot, Slots.read_server((Slots.split_slot(slot.name))))
  Slots.set_state(slot, 'leased')
end

-- After a failed adoption the lease rests, each time twice as long, so that claims go on to other work.
local function rest_lease(slot, first_us, most_us)
  slot.rest_us = math.min(slot.rest_us and 2 * slot.rest_us or first_us, most_us)
  slot.rests_until = Call.now + slot.rest_us
end

-- It is driven again: the next failure rests it as the first one did.
local function forget_rest(slot) slot.rest_us, slot.rests_until = nil, nil end

return {
  arrange_slots = arrange_slots, bury_server = bury_server, end_rests = end_rests, forget_rest = forget_rest,
  hide_slot = hide_slot, idle_slot = idle_slot, make_adoptable = make_adoptable, may_go_on = may_go_on,
  rest_lease = rest_lease, rest_server = rest_server, show_free_slots = show_free_slots, show_slot = show_slot,
  unmake_adoptable = unmake_adoptable,
}
