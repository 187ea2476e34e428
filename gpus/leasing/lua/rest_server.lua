-- Why: the server said that it is busy; it gets no lease for a while.
-- Keys: KEYS[1] prefix
-- Args: clock, server, µs
-- Returns: 1
-- include: gate
-- include: rest
if not is_open() then return refuse() end
local server = read_server(ARGV[2])
if server then rest_server(server, now + tonumber(ARGV[3])) end
return 1
