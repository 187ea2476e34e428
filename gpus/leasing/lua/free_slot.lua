-- Why: a quarantined slot is proven free.
-- Keys: KEYS[1] prefix
-- Args:
--   slot: text
-- Returns: wakes, flat: pool, host, count, …
-- include: gate
-- include: idle
-- include: wakes
local whole = is_whole()
if not whole and not is_filling() then return refuse() end
local slot = read_slot(args.slot)
if not slot or slot.state ~= 'quarantined' then return {} end
local is_claimable, server = idle_slot(slot, slot.since_us)
return whole and is_claimable and wakes_for({ { server.pool, server.host, 1 } }) or {}
