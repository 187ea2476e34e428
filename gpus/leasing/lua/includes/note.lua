-- Slots that something holds although their server was never configured: they must not be lost.
-- include: slots
-- include: servers

-- The slot and its server, new where nobody has heard of them. A server that is only known by such a slot is gone
-- from the start, and goes with it.
local function note_slot(slot, pool)
  local name, index = split_slot(slot)
  local server = read_server(name) or {
    name = name, pool = pool, host = '', models = ',', class = '', slots = 0, top = 0, desired = 'off',
    rests_until = 0, gone = true, strikes = 0, struck = '', opens = 0,
  }
  if server.top <= index then
    server.top = index + 1
    save_server(server)
  end
  return read_slot(slot) or new_slot(slot, server.pool), server
end
