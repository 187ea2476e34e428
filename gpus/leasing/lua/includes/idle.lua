-- What becomes of a slot that nothing holds any more, and of a server whose last slot that was.
-- include: keys
-- include: room

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
  local server = read_server((split_slot(slot.name)))
  if server.gone then
    delete_slot(slot)
    bury_server(server)
    return false, server
  end
  slot.pool, slot.job, slot.attempt, slot.epoch, slot.model, slot.tenant = nil, nil, nil, nil, nil, nil
  slot.priority, slot.estimate, slot.leased_us, slot.worker, slot.asked, slot.host = nil, nil, nil, nil, nil, nil
  slot.band, slot.dues = nil, nil
  if server.top > server.slots then
    set_state(slot, 'off', since_us)
    return arrange_slots(server) > 0, server
  end
  set_state(slot, server.desired == 'on' and 'free' or 'off', since_us)
  return show_slot(slot, server), server
end
