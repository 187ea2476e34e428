-- Why: confirms ends that release.lua stored uncommitted, and that are committed in the database now: forgets them, and
--   frees slots that waited only for that. A rebuilt index may hold such an end as a lease, restored by a renewal that
--   was under way during the release. Caller: jobs/execution/completion.py.
-- Keys: broad, circuits, class_turn, classes, depth, estimates, expiry, free, generation, heads, held, kept, leases,
--   line, models, open, paid, parked, parked_depth, pending, pool, rebuild, resting, running, server, servers,
--   settling, since, slot, states, tenants, turn, waits, warm
-- Args:
--   ends: records
--     slot, job, attempt: text
--     epoch: number
-- Returns: wakes, flat: pool, host, count, …
-- include: keys
-- include: index
-- include: pools
-- include: availability
-- include: classes
-- include: line
-- include: leases
-- include: assign
-- include: parked
-- include: wakes
local whole = Index.is_whole()
if not whole and not Index.is_filling() then return Index.refuse() end
local freed, tenants = {}, {}
for _, ref in ipairs(args.ends) do
  local found = Leases.end_by_ref(ref.slot, ref.job, ref.attempt, ref.epoch)
  local slot = found and Leases.forget_end(ref.attempt, found)
  if not found then
    -- Restored by a renewal. An adoptable lease, or one that is being adopted, belongs to another worker: the previous
    -- worker's end may have been refused.
    found = Leases.slot_held_by_ref(ref.slot, ref.job, ref.attempt, ref.epoch)
    if found and (found.state ~= 'leased' or found.adopter) then found = nil end
    if found then
      Assign.drop_lease(found)
      slot = found
    end
  end
  if found then tenants[found.tenant] = found.pool end
  if slot then
    local is_claimable, server = Availability.idle_slot(slot)
    if is_claimable then freed[#freed + 1] = { server.pool, server.host, 1 } end
  end
end
if not whole then return {} end

-- A tenant that was at max_running may start a job now, perhaps in another pool where a slot was free already.
local reply = Wakes.wakes_for(freed)
for tenant, home in pairs(tenants) do
  if Pools.rules_of(tenant).max_running and not Pools.is_at_max_running(tenant) then
    for _, name in ipairs(redis.call('SMEMBERS', Keys.waits(tenant))) do
      local pool, first = Pools.load_pool(name), {}
      if name ~= home and not Line.is_parked(pool, tenant) then
        Parked.each_queue(pool, tenant, function(_, models) first[models[1]:sub(2)] = 1 end)
        for _, value in ipairs(Wakes.wakes_for_tickets(name, Classes.read_classes(name), first)) do reply[#reply + 1] = value end
      end
    end
  end
end
return reply
