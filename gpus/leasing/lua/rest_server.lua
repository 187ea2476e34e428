-- Why: lets a server rest (gives it no lease) for a while, because it answered that it is busy.
-- Keys: free, generation, open, rebuild, resting, server, servers, slot, warm
-- Args:
--   server: text
--   rest_us: number
-- Returns: 1
-- include: call
-- include: index
-- include: slots
-- include: availability
if not Index.is_open() then return Index.refuse() end
local server = Slots.read_server(args.server)
if server then Availability.rest_server(server, Call.now + args.rest_us) end
return 1
