-- How many slots of a server may be given out. Its count is a number of slots, not of places: what still runs above a
-- count that was lowered takes the place of as many below, and a slot up there vanishes when it ends.
-- include: lists

local function is_idle(slot) return slot.state == 'free' or slot.state == 'off' end

-- Whether a held slot may go straight on to another job.
local function has_room(server, index)
  if server.gone or server.desired ~= 'on' or index >= server.slots or server.opens > 0 then return false end
  if server.top <= server.slots then return true end  -- nothing is above the count
  local others = 0
  each_slot(server, function(slot, at)
    if at ~= index and not is_idle(slot) then others = others + 1 end
  end)
  return others < server.slots
end

-- Whether its slot may, to one of the same pool and driver, without being free in between.
local function may_go_on(slot, server, index)
  return has_room(server, index) and server.pool == slot.pool and server.host == slot.host and server.rests_until <= now
end

-- Decides which idle slots may be given out, lowest first. Returns how many can be claimed that could not before.
local function arrange_slots(server)
  if server.gone then return 0 end
  local room, opened, top = server.desired == 'on' and server.slots or 0, 0, server.slots
  each_slot(server, function(slot)
    if not is_idle(slot) then room = room - 1 end
  end)
  each_slot(server, function(slot, index)
    if index < server.slots then
      if not is_idle(slot) then return end
      local state = room > 0 and 'free' or 'off'
      room = room - 1
      if slot.state == state then return end
      hide_slot(slot, server)
      set_state(slot, state, slot.since_us)
      if show_slot(slot, server) then opened = opened + 1 end
    elseif is_idle(slot) then
      hide_slot(slot, server)
      delete_slot(slot)
    else
      top = index + 1
    end
  end)
  if top < server.top then
    server.top = top
    save_server(server)
  end
  return opened
end
