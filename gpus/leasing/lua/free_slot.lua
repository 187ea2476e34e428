-- Why: a quarantined slot is proven free.
-- Keys: KEYS[1] prefix
-- Args: clock, slot
-- Returns: wakes, flat: pool, host, count, …
-- include: gate
-- include: slots
-- include: wakes
local whole = gate.is_whole()
if not whole and not gate.is_filling() then return gate.refuse() end
local slot = slots.read(ARGV[2])
if not slot or slot.state ~= 'quarantined' then return {} end
local open, server = slots.idle(slot)
return whole and open and wakes.for_freed({ { server.pool, server.host, 1 } }) or {}
