-- Servers that said they are busy, or whose circuit opened, rest for a while: their free slots leave the lists meanwhile.
-- include: keys
-- include: lists

local LOOK_AGAIN_US = 2000000

local function rest_server(server, until_us)
  each_slot(server, function(slot)
    if slot.state == 'free' then hide_slot(slot, server) end
  end)
  server.rests_until = math.max(server.rests_until, until_us)
  redis.call('ZADD', Keys.resting(), server.rests_until, server.name)
  save_server(server)
end

local function show_free_slots(server)
  local shown = 0
  each_slot(server, function(slot)
    if slot.state == 'free' and show_slot(slot, server) then shown = shown + 1 end
  end)
  return shown
end

-- Half open: one slot tries. It is looked at again and again, because the slot may be taken away meanwhile, or none is
-- free yet.
local function try_one_slot(server)
  redis.call('ZADD', Keys.resting(), now + LOOK_AGAIN_US, server.name)
  local probe = server.probe and read_slot(server.probe)
  if probe and probe.state ~= 'off' and probe.state ~= 'quarantined' then
    show_slot(probe, server)
    return
  end
  server.probe = nil
  each_slot(server, function(slot)
    if server.probe or slot.state ~= 'free' then return end
    server.probe = slot.name
    show_slot(slot, server)
  end)
  save_server(server)
end

-- Lists the free slots of servers whose rest is over; a few servers each time keep a claim short.
local function end_rests(limit)
  for _, name in ipairs(redis.call('ZRANGEBYSCORE', Keys.resting(), '-inf', now, 'LIMIT', 0, limit)) do
    local server = read_server(name)
    if server.opens > 0 and not server.gone then
      try_one_slot(server)
    else
      redis.call('ZREM', Keys.resting(), name)
      if not server.gone then show_free_slots(server) end
    end
  end
end
