-- Why: every two seconds: resets the counts of pending wakes and computes the missing ones, so that a lost wake delays
--   a job by one period. Each pinned host is counted separately, so that a host without a worker does not use up the
--   wakes of others. Caller: jobs/sweeps/fill.py.
-- Keys: classes, depth, free, generation, kept, leases, open, pending, pool, rebuild, resting, server, servers, slot,
--   warm
-- Args:
--   pools: texts
-- Returns: wakes, flat: pool, host, count, …
-- include: keys
-- include: index
-- include: availability
-- include: classes
-- include: wakes
local RESTS_AT_ONCE = 1000

if not Index.is_whole() then return Index.refuse() end
Availability.end_rests(RESTS_AT_ONCE)
local reply = {}
for _, pool in ipairs(args.pools) do
  local counts = {}
  local function want(class, most)
    local flat = redis.call('ZRANGE', Keys.open(pool, class), 0, -1, 'WITHSCORES')
    for h = 1, #flat, 2 do
      counts[flat[h]] = (counts[flat[h]] or 0) + math.min(tonumber(flat[h + 1]), most)
    end
  end
  redis.call('DEL', Keys.pending(pool))
  want('adoptable', math.huge)
  for _, class in ipairs(Classes.read_classes(pool)) do want(class[1], Wakes.waiting_for(pool, class[2])) end
  for host, count in pairs(counts) do
    if count > 0 then Wakes.add_wakes(reply, pool, host, count) end
  end
end
return reply
