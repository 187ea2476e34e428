-- Why: tenants that an operator paused start nothing new, and those that are not among them any more go on. All of
--   them each time, so that it can be told again and again.
-- Keys: KEYS[1] prefix
-- Args: clock, pool, then the tenants
-- Returns: wakes for tickets that came back, flat: pool, host, count, …
-- include: gate
-- include: parked
-- include: arrivals
local pool_name, PAUSED = ARGV[2], 'p'

local whole = is_whole()
if not whole and not is_filling() then return refuse() end
redis.call('SADD', key('pools'), pool_name)
local pool, paused, back = load_pool(pool_name), {}, {}
for i = 3, #ARGV do paused[ARGV[i]] = true end
for _, tenant in ipairs(redis.call('HKEYS', key('parked', pool_name))) do  -- first, so that no band is empty in between
  if not paused[tenant] then unpark(pool, tenant, PAUSED, back) end
end
for i = 3, #ARGV do park(pool, ARGV[i], PAUSED) end
save_pool(pool)
return whole and wakes_for_tickets(pool_name, read_classes(pool_name), back) or {}
