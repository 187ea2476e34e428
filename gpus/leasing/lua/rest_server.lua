-- Why: the server said that it is busy; it gets no lease for a while.
-- Keys: KEYS[1] prefix
-- Args:
--   server: text
--   rest_us: number
-- Returns: 1
-- include: gate
-- include: rest
if not is_open() then return refuse() end
local server = read_server(args.server)
if server then rest_server(server, now + args.rest_us) end
return 1
