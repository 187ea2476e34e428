-- Why: completes an adoption: the database raised the attempt's epoch, and the lease is valid under that epoch only.
--   Caller: jobs/execution/claiming.py.
-- Keys: expiry, free, generation, leases, open, rebuild, server, slot, states, warm
-- Args:
--   slot, job, attempt: text
--   epoch: number
--   worker: text
--   new_epoch: number
--   lease_us: number
-- Returns: 1 if the worker holds the lease under the new epoch, 0 if another worker was first
-- include: index
-- include: slots
-- include: availability
-- include: leases
local name, job, attempt, epoch, worker = args.slot, args.job, args.attempt, args.epoch, args.worker
local new_epoch, lease_us = args.new_epoch, args.lease_us

if not Index.is_open() then return Index.refuse() end
local taken = Leases.slot_held_by_ref(name, job, attempt, new_epoch)
if taken and taken.state == 'leased' and taken.worker == worker then return 1 end
local slot = Leases.slot_held_by_ref(name, job, attempt, epoch)
if not slot or (slot.state == 'leased' and not Leases.is_holder(slot, worker)) then return 0 end
Leases.pass_lease(slot, worker, new_epoch)
Availability.reset_rest(slot)
if slot.state == 'adoptable' then Availability.unmake_adoptable(slot) else Slots.save_slot(slot) end
Leases.set_expiry(attempt, lease_us)
return 1
