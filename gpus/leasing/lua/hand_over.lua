-- Why: makes a lease adoptable when its worker stops while the run continues on the server. After a failed adoption the
--   lease rests first, so that claims reach tickets that can run.
-- Keys: broad, circuits, class_turn, classes, depth, estimates, expiry, free, generation, heads, held, kept, leases,
--   line, models, open, paid, parked, parked_depth, pool, rebuild, running, server, since, slot, states, tenants,
--   turn, waits, warm
-- Args:
--   slot, job, attempt: text
--   epoch: number
--   worker: text
--   first_rest_us: number or nil, nil: adoptable at once
--   longest_rest_us: number
-- Returns: 1 if the worker held it, else 0
-- include: index
-- include: availability
-- include: leases
-- include: assign
local name, job, attempt, epoch, worker = args.slot, args.job, args.attempt, args.epoch, args.worker
local first_rest_us = args.first_rest_us

if not Index.is_open() then return Index.refuse() end
local slot = Leases.slot_held_by_ref(name, job, attempt, epoch)
if not slot or slot.state ~= 'leased' or not Leases.is_holder(slot, worker) then return 0 end
Assign.drop_follower(slot)
Leases.pass_lease(slot, '', epoch)
if first_rest_us then Availability.rest_lease(slot, first_rest_us, args.longest_rest_us) end
Availability.make_adoptable(slot)
return 1
