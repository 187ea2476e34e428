-- How long the index was reached by nobody who renews or looks for what ran out: Redis was paused, or they all were.
-- include: keys

-- The longest silence since the last look for expired leases, in µs, the present one included; 0 where an older version opened
-- the index and no sweep has looked since.
local function longest_silence()
  local seen = redis.call('HMGET', Keys.ticking(), 'at_us', 'renewed_us', 'silent_us')
  if not seen[1] then return 0 end
  return math.max(tonumber(seen[3]) or 0, now - math.max(seen[1], seen[2] or 0))
end

local function note_renewal()
  redis.call('HSET', Keys.ticking(), 'silent_us', longest_silence(), 'renewed_us', now)
end

-- A version that goes by TIME alone writes `at_us` only: `older_us` is when its sweeper looked (time.lua).
local function note_look()
  local seen = redis.call('HMGET', Keys.ticking(), 'at_us', 'looked_us')
  if seen[1] and seen[1] ~= seen[2] then redis.call('HSET', Keys.ticking(), 'older_us', seen[1]) end
  redis.call('HSET', Keys.ticking(), 'silent_us', 0, 'at_us', now, 'looked_us', now)
end
