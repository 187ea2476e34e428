-- Why: changes operator rules of tenants at once: weight, highest band, max_running. Tenants that are not
--   named keep theirs. The rules apply to waiting tickets too, without touching them one by one.
-- Keys: broad, circuits, class_turn, classes, depth, estimates, generation, heads, kept, leases, line, models, open,
--   paid, parked, parked_depth, pending, pool, rebuild, running, server, since, slot, tenants, turn, waits
-- Args:
--   tenants: records
--     name: text
--     weight: number
--     band: number, the highest it may use, 0 to 2
--     most_running: number or nil, max_running
-- Returns: wakes for tickets that came back, flat: pool, host, count, …
-- include: keys
-- include: index
-- include: pools
-- include: classes
-- include: running
-- include: wakes
-- include: grants
local whole = Index.is_whole()
if not whole and not Index.is_filling() then return Index.refuse() end
local back, limited = {}, {}
for _, row in ipairs(args.tenants) do
  if row.most_running and not Pools.rules_of(row.name).max_running then limited[row.name] = true end
end
Running.find_running(limited)
for _, row in ipairs(args.tenants) do
  local tenant, before = row.name, Pools.rules_of(row.name)
  local after = { weight = row.weight, band = row.band, max_running = row.most_running }
  Pools.save_rules(tenant, after)
  if after.band ~= before.band then
    for _, name in ipairs(redis.call('SMEMBERS', Keys.waits(tenant))) do
      local pool = Pools.load_pool(name)
      Grants.regrant(pool, tenant, before.band)
      Pools.save_pool(pool)
    end
  end
  if after.max_running ~= before.max_running then
    if not after.max_running then redis.call('DEL', Keys.running(tenant)) end
    Running.apply_max_running(tenant, back)
  end
end
local reply = {}
if not whole then return reply end
for name, tickets in pairs(back) do
  for _, value in ipairs(Wakes.wakes_for_tickets(name, Classes.read_classes(name), tickets)) do reply[#reply + 1] = value end
end
return reply
