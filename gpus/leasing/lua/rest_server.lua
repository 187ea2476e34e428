-- Why: the server said that it is busy; it gets no lease for a while.
-- Keys: KEYS[1] prefix
-- Args: clock, server, µs
-- Returns: 1
-- include: gate
-- include: slots
if not gate.is_open() then return gate.refuse() end
local server = servers.read(ARGV[2])
if server and not server.gone then slots.rest(server, now + tonumber(ARGV[3])) end
return 1
