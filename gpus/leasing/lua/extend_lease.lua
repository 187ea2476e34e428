-- Why: extends one lease or end for a worker that is alive according to the database but cannot reach Redis. A worker's
--   own renewals, by gpus/leasing/keeper.py, are in renew.lua. Caller: jobs/sweeps/expired_leases.py.
-- Keys: expiry, generation, rebuild, settling, slot
-- Args:
--   slot, job, attempt: text
--   epoch: number
--   lease_us: number
-- Returns: 1 if the lease is held or its end waits for its commit, else 0
-- include: index
-- include: leases
local name, job, attempt, epoch = args.slot, args.job, args.attempt, args.epoch

if not Index.is_whole() then return Index.refuse() end
local slot = Leases.slot_held_by_ref(name, job, attempt, epoch)
if slot and slot.state ~= 'leased' then return 0 end
if not slot and not Leases.end_by_ref(name, job, attempt, epoch) then return 0 end
Leases.set_expiry(attempt, args.lease_us)
return 1
