-- After a long silence nothing runs out before the floor, so that living keepers get time to renew. What expires before
-- `had_time_us` had that time once already and was not renewed in it.
-- include: keys

local function read_floor()
  local floor = redis.call('HMGET', key('ticking'), 'floor_us', 'had_time_us')
  return tonumber(floor[1]) or 0, tonumber(floor[2]) or 0
end

-- When what expires then by its own time runs out; floor_us, had_time_us: as read.
local function runs_out(expires, floor_us, had_time_us)
  return expires < had_time_us and expires or math.max(expires, floor_us)
end

-- All that expires then or earlier has run out.
local function latest_expired()
  local floor_us, had_time_us = read_floor()
  return floor_us > now and math.min(now, had_time_us - 1) or now
end

local function grant_time(lease_us)
  if read_floor() > now then return end
  local granted_us = tonumber(redis.call('HGET', key('ticking'), 'granted_us')) or 0
  redis.call('HSET', key('ticking'), 'floor_us', now + lease_us, 'granted_us', now, 'had_time_us', granted_us + lease_us)
end
