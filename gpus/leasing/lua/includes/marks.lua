-- A mark is what must be remembered of few tickets only: how often it was skipped, since when, and the server it
-- avoids. What this call has read or written of them is remembered with the pool: pool.marks[member], false: none.
-- include: keys
-- include: pools

local function set_mark(pool, member, skips, since_us, avoid)
  local mark = string.format('%d:%d:%s', skips, since_us, avoid)
  pool.marked = pool.marked + redis.call('HSET', Keys.marks(pool.name), member, mark)
  pool.marks[member] = mark
end

-- Skips, µs of the first one for which its patience counts, server: 0, 0 and '' without a mark.
local function read_mark(pool, member)
  if pool.marked == 0 then return 0, 0, '' end
  local mark = pool.marks[member]
  if mark == nil then
    mark = redis.call('HGET', Keys.marks(pool.name), member)
    pool.marks[member] = mark
  end
  if not mark then return 0, 0, '' end
  local skips, since_us, avoid = mark:match('^(%d+):(%d+):(.*)$')
  return tonumber(skips), tonumber(since_us), avoid
end

local function drop_mark(pool, member)
  if pool.marked == 0 or pool.marks[member] == false then return end
  pool.marked = pool.marked - redis.call('HDEL', Keys.marks(pool.name), member)
  pool.marks[member] = false
end
