-- Why: stores the heartbeat of a pinned worker: its state and its GPU's telemetry. Needs no index.
-- Keys: beats, telemetry
-- Args:
--   server: text
--   said: text, JSON: the worker's report on itself
--   telemetry: text or nil, JSON: one telemetry reading
--   kept: number, how many readings the history keeps
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
