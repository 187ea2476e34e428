-- Why: an operator sees how a GPU did lately.
-- Keys: KEYS[1] prefix
-- Args: clock, server, how many at most
-- Returns: JSON texts, the newest first
-- include: keys
return redis.call('LRANGE', key('telemetry', ARGV[2]), 0, tonumber(ARGV[3]) - 1)
