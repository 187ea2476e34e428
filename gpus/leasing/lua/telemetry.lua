-- Why: shows a GPU's recent telemetry to operators. Ages are differences of the fleet's time, as for heartbeats.
-- Keys: telemetry
-- Args:
--   server: text
--   within_us: number, maximum age
-- Returns: flat, the newest first: µs since the reading arrived, and the reading (JSON)
-- include: keys
-- include: call
local server, within, found = args.server, args.within_us, {}
for _, packed in ipairs(redis.call('LRANGE', Keys.telemetry(server), 0, -1)) do
  if packed:sub(1, 1) ~= '{' then -- readings of the previous version have no time
    local since, measured = cmsgpack.unpack(packed)
    if Call.now - since > within then break end
    found[#found + 1] = tostring(Call.now - since)
    found[#found + 1] = measured
  end
end
return found
