-- Why: parks the named tenants for a reason, so that they get no new lease, and releases tenants that are no longer
--   named, unless another reason remains. Each call sends the whole set, so it may be repeated. Caller:
--   jobs/sweeps/quotas.py.
-- Keys: broad, circuits, class_turn, classes, depth, estimates, generation, heads, kept, leases, line, models, open,
--   paid, parked, parked_depth, pending, pool, pools, rebuild, server, since, turn
-- Args:
--   pool: text
--   reason: text, a letter: p paused, q quota
--   tenants: texts, all that are parked for it
-- Returns: wakes for tickets that came back, flat: pool, host, count, …
-- include: keys
-- include: index
-- include: pools
-- include: classes
-- include: parked
-- include: wakes
local pool_name, reason = args.pool, args.reason

local whole = Index.is_whole()
if not whole and not Index.is_filling() then return Index.refuse() end
redis.call('SADD', Keys.pools(), pool_name)
local pool, held_back, back = Pools.load_pool(pool_name), {}, {}
for _, tenant in ipairs(args.tenants) do held_back[tenant] = true end
for _, tenant in ipairs(redis.call('HKEYS', Keys.parked(pool_name))) do  -- unpark first, so that no band is empty in between
  if not held_back[tenant] then Parked.unpark(pool, tenant, reason, back) end
end
for _, tenant in ipairs(args.tenants) do Parked.park(pool, tenant, reason) end
Pools.save_pool(pool)
return whole and Wakes.wakes_for_tickets(pool_name, Classes.read_classes(pool_name), back) or {}
