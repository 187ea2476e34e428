-- Why: during a rebuild, gives a live attempt of the database its slot back; a live holder renews it afterwards.
-- Keys: broad, circuits, class_turn, classes, depth, estimates, expiry, foretold, free, generation, heads, held, kept,
--   leases, line, marks, models, open, paid, parked, parked_depth, pool, pools, rebuild, running, server, servers,
--   settling, since, slot, states, tenants, turn, waits, warm
-- Args:
--   lease_us: number
--   held_us: number or nil, µs since it was leased; nil: leased_us counts
--   lease: record
--     pool, slot, job, attempt: text
--     epoch: number
--     model, tenant: text
--     priority, fence: number
--     leased_us: number, since the epoch, in the fleet's time
--     estimate: number, GPU-seconds
-- Returns: 1 if the attempt holds the slot now or has an uncommitted end; 0 if a later attempt holds the slot
-- include: call
-- include: index
-- include: restore
if not Index.is_open() then return Index.refuse() end
local lease = args.lease
lease.worker = ''
if args.held_us then lease.leased_us = Call.now - args.held_us end
return Restore.restore_lease(lease, args.lease_us) and 1 or 0
