-- What becomes of a slot that nothing holds any more, and of a server whose last slot that was.
-- include: keys
-- include: lists

local function delete_slot(slot)
  redis.call('HINCRBY', key('states', slot.home), slot.state, -1)
  redis.call('DEL', key('slot', slot.name))
end

-- Forgets a gone server once nothing holds any of its slots.
local function bury_server(server)
  for index = 0, server.top - 1 do
    if redis.call('EXISTS', key('slot', server.name .. '/' .. index)) == 1 then return end
  end
  redis.call('DEL', key('server', server.name))
  redis.call('SREM', key('servers'), server.name)
  redis.call('ZREM', key('resting'), server.name)
end

-- The slot is free, off, or gone with its server. True if it can be claimed now; also its server.
local function idle_slot(slot, since_us)
  local name, index = split_slot(slot.name)
  local server = read_server(name)
  if server.gone then
    delete_slot(slot)
    bury_server(server)
    return false, server
  end
  slot.pool, slot.job, slot.attempt, slot.epoch, slot.model, slot.tenant = nil, nil, nil, nil, nil, nil
  slot.priority, slot.estimate, slot.leased_us, slot.worker, slot.asked, slot.host = nil, nil, nil, nil, nil, nil
  set_state(slot, is_usable(server, index) and 'free' or 'off', since_us)
  return show_slot(slot, server), server
end
