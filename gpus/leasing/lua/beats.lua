-- Why: reads the latest heartbeats of pinned workers. Ages are differences of the fleet's time, so host clocks do not
--   matter.
-- Keys: beats
-- Args:
--   servers: texts
-- Returns: flat, per server: µs since its last heartbeat, and its report as JSON; '' and '' without a heartbeat
-- include: keys
-- include: call
local found = {}
for _, server in ipairs(args.servers) do
  local packed = redis.call('HGET', Keys.beats(), server)
  local since, said = nil, ''
  if packed then since, said = cmsgpack.unpack(packed) end
  found[#found + 1] = since and tostring(Call.now - since) or ''
  found[#found + 1] = said
end
return found
