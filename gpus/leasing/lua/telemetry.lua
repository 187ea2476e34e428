-- Why: shows a GPU's recent telemetry to operators. Ages are differences of the fleet's time, as for heartbeats.
-- Keys: telemetry
-- Args:
--   server: text
--   within_us: number, maximum age
--   longest: number, bytes of a reading; a longer one is left out
-- Returns: flat, the newest first: µs since the reading arrived, and the reading (JSON)
-- include: keys
-- include: call
local within, found = args.within_us, {}
for _, packed in ipairs(redis.call('LRANGE', Keys.telemetry(args.server), 0, -1)) do
  if packed:sub(1, 1) ~= '{' then -- readings of the previous version have no time
    local since, measured = cmsgpack.unpack(packed)
    if Call.now - since > within then break end
    if #measured <= args.longest then
      found[#found + 1] = tostring(Call.now - since)
      found[#found + 1] = measured
    end
  end
end
return found
