-- Why: prefetch: claims a slot's next job (the follower) while its short job still runs. A second call with the same
--   attempt returns the same. Caller: jobs/execution/prefetch.py.
-- Keys: broad, circuits, class_turn, classes, depth, estimates, forecast, foretold, free, generation, heads, held,
--   kept, leases, line, marks, models, paid, parked, parked_depth, placed, pool, rebuild, running, server, serving,
--   since, slot, states, tenants, turn, waits, warm
-- Args:
--   slot, job, attempt: text
--   epoch: number
--   worker, next_attempt: text
--   warm: text or nil, models that are warm in the worker's own process (',a,b,'); nil: the slot's last model
-- Returns: the follower as an array (lease_reply), or nil
-- include: index
-- include: pools
-- include: slots
-- include: leases
-- include: assign
local name, job, attempt, epoch, worker = args.slot, args.job, args.attempt, args.epoch, args.worker
local next_attempt, warm = args.next_attempt, args.warm

if not Index.is_whole() then return Index.refuse() end
local slot, server, slot_number = Slots.read_with_server(name)
if not Leases.is_held_by_ref(slot, job, attempt, epoch) then return nil end
if slot.state ~= 'leased' or not Leases.is_holder(slot, worker) then return nil end
local known = Leases.read_follower(slot)
if known then return known.attempt == next_attempt and Leases.lease_reply(known, false) or nil end
return Assign.claim_follower(slot, server, slot_number, Pools.load_pool(slot.pool), next_attempt, warm)
