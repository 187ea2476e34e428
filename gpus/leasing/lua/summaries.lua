-- Why: shows a GPU's telemetry of a day to operators, in summaries of five minutes (beat.lua).
-- Keys: summaries
-- Args:
--   server: text
--   most: number, of summaries
-- Returns: the fleet's time in µs, and summaries as JSON, the newest first
-- include: keys
-- include: call
local found = redis.call('LRANGE', Keys.summaries(args.server), 0, args.most - 1)
table.insert(found, 1, tostring(Call.now))
return found
