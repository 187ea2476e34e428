-- Which slots a claim may get: the lists of free and adoptable slots, and every change that adds or removes a slot.
-- include: keys
-- include: call
-- include: slots

-- A slot is listed exactly while it is adoptable, or free on a server that does not rest. Of a server whose circuit is
-- half open only the trial slot is listed. There is one list per class and host; adoptable slots are in a class named
-- 'adoptable'. `open` counts each list by host. The score of an adoptable slot is the time from which claims may get it.

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

-- Lists a slot if claims may get it. Returns whether it is listed.
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

-- Removes a free or adoptable slot from the lists.
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

-- How many slots of a server may be leased. A lowered count limits running jobs, not slot numbers: a job that still runs
-- on a higher slot number closes one lower slot meanwhile, and its slot is deleted when it ends.

local function is_idle(slot) return slot.state == 'free' or slot.state == 'off' end

-- Whether a held slot may get another job directly.
local function has_room(server, slot_number)
  if server.gone or server.desired ~= 'on' or slot_number >= server.slots or server.opens > 0 then return false end
  if server.top <= server.slots then return true end  -- no slot is above the count
  local others = 0
  Slots.each_slot(server, function(slot, at)
    if at ~= slot_number and not is_idle(slot) then others = others + 1 end
  end)
  return others < server.slots
end

-- Whether the slot may get another job of the same pool and host, without being free in between.
local function may_continue(slot, server, slot_number)
  return has_room(server, slot_number) and server.pool == slot.pool and server.host == slot.host
    and server.rests_until <= Call.now
end

-- Opens as many idle slots as the count allows, lowest first. Returns how many slots became claimable.
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

-- Rest: a server that answered that it is busy, or whose circuit opened, gets no lease for a while. Its free slots are
-- unlisted meanwhile.

local TRIAL_CHECK_US = 2000000

-- Gives the server no lease until `until_us`.
local function rest_server(server, until_us)
  Slots.each_slot(server, function(slot)
    if slot.state == 'free' then hide_slot(slot, server) end
  end)
  server.rests_until = math.max(server.rests_until, until_us)
  redis.call('ZADD', Keys.resting(), server.rests_until, server.name)
  Slots.save_server(server)
end

-- Lists the server's free slots. Returns how many became claimable.
local function show_free_slots(server)
  local shown = 0
  Slots.each_slot(server, function(slot)
    if slot.state == 'free' and show_slot(slot, server) then shown = shown + 1 end
  end)
  return shown
end

-- Half open: lists one slot for the trial. Repeated every TRIAL_CHECK_US, because the slot may be removed meanwhile, or
-- none is free yet.
local function begin_server_trial(server)
  redis.call('ZADD', Keys.resting(), Call.now + TRIAL_CHECK_US, server.name)
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

-- Lists the free slots of servers whose rest is over. limit: servers per call, so that a claim stays short.
local function end_rests(limit)
  for _, name in ipairs(redis.call('ZRANGEBYSCORE', Keys.resting(), '-inf', Call.now, 'LIMIT', 0, limit)) do
    local server = Slots.read_server(name)
    if server.opens > 0 and not server.gone then
      begin_server_trial(server)
    else
      redis.call('ZREM', Keys.resting(), name)
      if not server.gone then show_free_slots(server) end
    end
  end
end

-- A slot that is no longer held becomes free or off, or is deleted; a removed server is deleted with its last slot.

-- Deletes a removed server once it has no slot left.
local function delete_gone_server(server)
  for index = 0, server.top - 1 do
    if redis.call('EXISTS', Keys.slot(server.name .. '/' .. index)) == 1 then return end
  end
  redis.call('DEL', Keys.server(server.name))
  redis.call('SREM', Keys.servers(), server.name)
  redis.call('ZREM', Keys.resting(), server.name)
end

-- Makes the slot free or off, or deletes it with its server. Returns whether a slot became claimable, and the server.
local function idle_slot(slot, since_us)
  local server = Slots.read_server((Slots.split_slot(slot.name)))
  if server.gone then
    Slots.delete_slot(slot)
    delete_gone_server(server)
    return false, server
  end
  slot.pool, slot.job, slot.attempt, slot.epoch, slot.model, slot.tenant = nil, nil, nil, nil, nil, nil
  slot.priority, slot.estimate, slot.leased_us, slot.worker, slot.adopter, slot.host = nil, nil, nil, nil, nil, nil
  slot.band, slot.charged_bands = nil, nil
  if server.top > server.slots then
    Slots.set_state(slot, 'off', since_us)
    return arrange_slots(server) > 0, server
  end
  Slots.set_state(slot, server.desired == 'on' and 'free' or 'off', since_us)
  return show_slot(slot, server), server
end

-- An adoptable lease has lost its worker while its job still runs on the server; the next claim takes it over.

-- The slot must be unlisted.
local function make_adoptable(slot)
  redis.call('ZREM', Keys.expiry(), slot.attempt)
  Slots.set_state(slot, 'adoptable')
  show_slot(slot, Slots.read_server((Slots.split_slot(slot.name))))
end

-- The lease has a holder again; the caller extends it.
local function unmake_adoptable(slot)
  hide_slot(slot, Slots.read_server((Slots.split_slot(slot.name))))
  Slots.set_state(slot, 'leased')
end

-- After a failed adoption claims skip the lease for a while, each time twice as long, and reach other work.
local function rest_lease(slot, first_us, most_us)
  slot.rest_us = math.min(slot.rest_us and 2 * slot.rest_us or first_us, most_us)
  slot.rests_until = Call.now + slot.rest_us
end

-- After an adoption that worked, the next failure rests the lease for the first duration again.
local function reset_rest(slot) slot.rest_us, slot.rests_until = nil, nil end

return {
  arrange_slots = arrange_slots, delete_gone_server = delete_gone_server, end_rests = end_rests, reset_rest = reset_rest,
  hide_slot = hide_slot, idle_slot = idle_slot, make_adoptable = make_adoptable, may_continue = may_continue,
  rest_lease = rest_lease, rest_server = rest_server, show_free_slots = show_free_slots, show_slot = show_slot,
  unmake_adoptable = unmake_adoptable,
}
