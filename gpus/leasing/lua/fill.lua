-- Why: the two-second fill: forgets wakes under way and counts what is missing, so that a lost wake costs one
-- period. Every pinned host is counted by itself: one whose worker is gone must not eat the others' wakes.
-- Keys: KEYS[1] prefix
-- Args: clock, then the pools
-- Returns: wakes, flat: pool, host, count, …
-- include: gate
-- include: slots
-- include: wakes
local RESTS_AT_ONCE = 1000

if not gate.is_whole() then return gate.refuse() end
slots.end_rests(RESTS_AT_ONCE)
local reply = {}
for i = 2, #ARGV do
  local pool, counts = ARGV[i], {}
  local function want(class, most)
    local flat = redis.call('ZRANGE', key.open(pool, class), 0, -1, 'WITHSCORES')
    for h = 1, #flat, 2 do
      local count = math.min(tonumber(flat[h + 1]), most)
      if count > 0 then counts[flat[h]] = (counts[flat[h]] or 0) + count end
    end
  end
  redis.call('DEL', key.pending(pool))
  want('adoptable', math.huge)
  for _, class in ipairs(servers.classes(pool)) do want(class[1], line.waiting(pool, class[2])) end
  for host, count in pairs(counts) do
    wakes.add(pool, host, count)
    for _, value in ipairs({ pool, host, count }) do reply[#reply + 1] = value end
  end
end
return reply
