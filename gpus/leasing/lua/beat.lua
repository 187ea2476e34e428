-- Why: a pinned worker says that it lives, what it runs and how its GPU does; no index is needed for that.
-- Keys: KEYS[1] prefix
-- Args: clock, server, what it says (JSON), telemetry (JSON) or '', how many of these are kept
-- Returns: 1
-- include: keys
local server, said, telemetry, kept = ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5])
redis.call('HSET', Keys.beats(), server, cmsgpack.pack(now, said))
if telemetry ~= '' then
  redis.call('LPUSH', Keys.telemetry(server), cmsgpack.pack(now, telemetry))
  redis.call('LTRIM', Keys.telemetry(server), 0, kept - 1)
end
return 1
