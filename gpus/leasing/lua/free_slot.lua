-- Why: frees a quarantined slot, after its GPU was proven idle. Caller: jobs/sweeps/quarantine.py.
-- Keys: classes, depth, free, generation, kept, leases, open, pending, pool, rebuild, resting, server, servers, slot,
--   states, warm
-- Args:
--   slot: text
-- Returns: wakes, flat: pool, host, count, …
-- include: index
-- include: slots
-- include: availability
-- include: wakes
local whole = Index.is_whole()
if not whole and not Index.is_filling() then return Index.refuse() end
local slot = Slots.read_slot(args.slot)
if not slot or slot.state ~= 'quarantined' then return {} end
local is_claimable, server = Availability.idle_slot(slot, slot.since_us)
return whole and is_claimable and Wakes.wakes_for({ { server.pool, server.host, 1 } }) or {}
