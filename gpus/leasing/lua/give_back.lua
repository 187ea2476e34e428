-- Why: ends a lease under which no job ran (its ticket was stale): the slot is free at once, without waiting for a
--   commit. Given a follower's ref it drops the follower, and the holder keeps the slot.
-- Keys: broad, circuits, class_turn, classes, depth, estimates, expiry, free, generation, heads, held, kept, leases,
--   line, models, open, paid, parked, parked_depth, pool, rebuild, resting, running, server, servers, since, slot,
--   states, tenants, turn, waits, warm
-- Args:
--   slot, job, attempt: text
--   epoch: number
--   worker: text
--   seconds: number, real GPU-seconds
--   rest_us: number or nil, how long the server rests (gets no lease)
-- Returns: 1 if the worker held it, else 0
-- include: call
-- include: index
-- include: slots
-- include: availability
-- include: leases
-- include: assign
local name, job, attempt, epoch, worker = args.slot, args.job, args.attempt, args.epoch, args.worker
local seconds, rest_us = args.seconds, args.rest_us

if not Index.is_open() then return Index.refuse() end
local slot, server = Slots.read_with_server(name)
if not Leases.is_held_by_ref(slot, job, attempt, epoch) then
  if not Leases.follower_matches(slot, job, attempt, epoch) or slot.worker ~= worker then return 0 end
  Assign.drop_follower(slot)
  Slots.save_slot(slot)
  if rest_us then Availability.rest_server(server, Call.now + rest_us) end
  return 1
end
if not Leases.is_holder(slot, worker) then return 0 end
Availability.hide_slot(slot, server)
Assign.drop_lease(slot, seconds)
if rest_us then Availability.rest_server(server, Call.now + rest_us) end
Availability.idle_slot(slot)
return 1
