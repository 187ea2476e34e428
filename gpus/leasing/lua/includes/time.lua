-- The one place where scripts get the time: `now`, microseconds since the epoch, from Redis' own clock.
-- ARGV[1] is empty, or the time of a simulator.
local now = tonumber(ARGV[1])
if not now then
  local clock = redis.call('TIME')
  now = clock[1] * 1000000 + clock[2]
end
