-- Why: a server that said it is busy gets no lease for a while.
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
