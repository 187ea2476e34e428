-- Why: heartbeat of a pinned worker: what it runs, and how its GPU does. It needs no index.
-- Keys: beats, telemetry
-- Args:
--   server: text
--   said: text, JSON: what the worker says of itself
--   telemetry: text or nil, JSON: what it measured
--   kept: number, of these the latest so many are kept
-- Returns: 1
-- include: keys
-- include: call
local server, said, telemetry, kept = args.server, args.said, args.telemetry, args.kept
redis.call('HSET', Keys.beats(), server, cmsgpack.pack(Call.now, said))
if telemetry then
  redis.call('LPUSH', Keys.telemetry(server), cmsgpack.pack(Call.now, telemetry))
  redis.call('LTRIM', Keys.telemetry(server), 0, kept - 1)
end
return 1
