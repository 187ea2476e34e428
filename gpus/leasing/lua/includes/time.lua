-- The one place where scripts get the time: `now`, microseconds since the epoch, from Redis' own clock.
local now

-- told: empty, or the time of a simulator.
local function ask_time(told)
  now = tonumber(told)
  if now then return end
  local clock = redis.call('TIME')
  now = clock[1] * 1000000 + clock[2]
end
