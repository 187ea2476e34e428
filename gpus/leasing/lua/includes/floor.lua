-- After a long silence nothing runs out before the floor, so that living keepers get time to renew. What expires before
-- `had_time_us` had that time once already and was not renewed in it.
-- include: keys

-- Added to the time at which a lease expires: it is the fleet's. A version that goes by TIME alone writes whole numbers.
local FLEET_TIME = 0.5

local function read_floor()
  local floor = redis.call('HMGET', key('ticking'), 'floor_us', 'had_time_us')
  return tonumber(floor[1]) or 0, tonumber(floor[2]) or 0
end

-- In how many µs what expires then by its own time runs out; clock_us: Redis' own; floor_us, had_time_us: as read.
local function runs_out_in(expires, clock_us, floor_us, had_time_us)
  local clock = expires % 1 == 0 and clock_us or now
  if expires >= had_time_us then expires = math.max(expires, floor_us) end
  return math.floor(expires) - clock
end

local function grant_time(lease_us)
  if read_floor() > now then return end
  local granted_us = tonumber(redis.call('HGET', key('ticking'), 'granted_us')) or 0
  redis.call('HSET', key('ticking'), 'floor_us', now + lease_us, 'granted_us', now, 'had_time_us', granted_us + lease_us)
end
