-- Why: tenants that are held back for a reason start nothing new, and those that are not among them any more go on,
--   unless there is another reason. All of them each time, so that it can be told again and again.
-- Keys: KEYS[1] prefix
-- Args: clock, pool, the reason's letter, then the tenants
-- Returns: wakes for tickets that came back, flat: pool, host, count, …
-- include: gate
-- include: parked
-- include: arrivals
local pool_name, reason = ARGV[2], ARGV[3]

local whole = is_whole()
if not whole and not is_filling() then return refuse() end
redis.call('SADD', Keys.pools(), pool_name)
local pool, held_back, back = load_pool(pool_name), {}, {}
for i = 4, #ARGV do held_back[ARGV[i]] = true end
for _, tenant in ipairs(redis.call('HKEYS', Keys.parked(pool_name))) do  -- first, so that no band is empty in between
  if not held_back[tenant] then unpark(pool, tenant, reason, back) end
end
for i = 4, #ARGV do park(pool, ARGV[i], reason) end
save_pool(pool)
return whole and wakes_for_tickets(pool_name, read_classes(pool_name), back) or {}
