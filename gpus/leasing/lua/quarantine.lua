-- Why: closes a slot whose GPU may still be busy with an attempt out of control, until its GPU is proven idle. A lease
--   or end of another attempt stays, because it was granted after such a proof. Callers: the sweeps that end
--   lost attempts, such as orphans and stray_attempts, and jobs/index_rebuild/.
-- Keys: broad, circuits, class_turn, classes, depth, estimates, expiry, free, generation, heads, held, kept, leases,
--   line, models, open, paid, parked, parked_depth, pool, rebuild, running, server, servers, since, slot, states,
--   tenants, turn, waits, warm
-- Args:
--   slot, attempt: text
--   pool: text, the server's, '' if the server is configured
-- Returns: 1 if this call closed the slot; 0 if it was closed before, or another attempt holds it
-- include: index
-- include: slots
-- include: availability
-- include: assign
local name, attempt = args.slot, args.attempt

if not Index.is_open() then return Index.refuse() end
local slot, server = Slots.ensure_slot(name, args.pool)
if slot.state == 'quarantined' then return 0 end
local is_held = slot.state == 'leased' or slot.state == 'adoptable' or slot.state == 'settling'
if is_held and slot.attempt ~= attempt then return 0 end
Availability.hide_slot(slot, server)
if slot.state == 'leased' or slot.state == 'adoptable' then
  Assign.drop_lease(slot)
  Slots.set_state(slot, 'quarantined')
else
  Slots.set_state(slot, 'quarantined', slot.since_us)
end
if server.top > server.slots then Availability.arrange_slots(server) end
return 1
