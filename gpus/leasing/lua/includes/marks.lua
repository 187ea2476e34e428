-- A mark is what must be remembered of few tickets only: how often it was skipped, and the server it avoids.
-- include: keys
-- include: pools

local function set_mark(pool, member, skips, avoid)
  pool.marked = pool.marked + redis.call('HSET', key('marks', pool.name), member, skips .. ':' .. avoid)
end

-- 0 and '' without a mark.
local function read_mark(pool, member)
  local mark = pool.marked > 0 and redis.call('HGET', key('marks', pool.name), member)
  if not mark then return 0, '' end
  local skips, avoid = mark:match('^(%d+):(.*)$')
  return tonumber(skips), avoid
end
