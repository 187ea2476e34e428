-- Why: how a GPU did lately, for operators. Ages are measured by the fleet's time, as of heartbeats.
-- Keys: telemetry
-- Args:
--   server: text
--   within_us: number, how far back
-- Returns: flat, the newest first: µs since it was told, and what was measured (JSON)
-- include: keys
-- include: call
local server, within, found = args.server, args.within_us, {}
for _, packed in ipairs(redis.call('LRANGE', Keys.telemetry(server), 0, -1)) do
  if packed:sub(1, 1) ~= '{' then -- what the version before this one wrote says no time
    local since, measured = cmsgpack.unpack(packed)
    if Call.now - since > within then break end
    found[#found + 1] = tostring(Call.now - since)
    found[#found + 1] = measured
  end
end
return found
