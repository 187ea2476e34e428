-- After a long silence nothing runs out before the floor, so that living keepers get time to renew. What expires before
-- `had_time_us` had that time once already and was not renewed in it.
-- include: keys

-- Added to the time at which a lease expires: it is the fleet's. A version that goes by TIME alone writes whole numbers.
local FLEET_TIME = 0.5

local function read_floor()
  local floor = redis.call('HMGET', Keys.ticking(), 'kept_floor_us', 'had_time_us')
  return tonumber(floor[1]) or 0, tonumber(floor[2]) or 0
end

-- In how many µs what expires then by its own time runs out; clock_us: Redis' own; floor_us, had_time_us: as read.
local function runs_out_in(expires, clock_us, floor_us, had_time_us)
  local clock = expires % 1 == 0 and clock_us or now
  if expires >= had_time_us then expires = math.max(expires, floor_us) end
  return math.floor(expires) - clock
end

-- Sweepers of a version that knows no `had_time_us` write `floor_us` alone, anew after each of their silences: theirs is
-- taken over where none is in force, and so is not put off by the next.
local function grant_time(was_silent, lease_us)
  local seen = redis.call('HMGET', Keys.ticking(), 'kept_floor_us', 'floor_us')
  local before_us, floor_us = tonumber(seen[1]) or 0, tonumber(seen[2]) or 0
  if before_us > now then return end
  if was_silent then floor_us = now + lease_us end
  if floor_us > now then
    redis.call('HSET', Keys.ticking(), 'floor_us', floor_us, 'kept_floor_us', floor_us, 'had_time_us', before_us)
  end
end
