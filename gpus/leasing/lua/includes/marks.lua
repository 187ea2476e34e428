-- A mark is what must be remembered of few tickets only: how often it was skipped, since when, and the server it
-- avoids.
-- include: keys
-- include: pools

local function set_mark(pool, member, skips, since_us, avoid)
  local mark = string.format('%d:%d:%s', skips, since_us, avoid)
  pool.marked = pool.marked + redis.call('HSET', key('marks', pool.name), member, mark)
end

-- Skips, µs of the first one for which its patience counts, server: 0, 0 and '' without a mark.
local function read_mark(pool, member)
  local mark = pool.marked > 0 and redis.call('HGET', key('marks', pool.name), member)
  if not mark then return 0, 0, '' end
  local skips, since_us, avoid = mark:match('^(%d+):(%d+):(.*)$')
  return tonumber(skips), tonumber(since_us), avoid
end
