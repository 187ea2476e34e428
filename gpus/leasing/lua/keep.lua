-- Why: renews a lease whose worker the database knows to be alive although Redis gets no renewals from it.
-- Keys: expiry, generation, rebuild, settling, slot
-- Args:
--   slot, job, attempt: text
--   epoch: number
--   lease_us: number
-- Returns: 1 if it is held or settling, else 0
-- include: index
-- include: leases
local name, job, attempt, epoch = args.slot, args.job, args.attempt, args.epoch

if not Index.is_whole() then return Index.refuse() end
local slot = Leases.held_under(name, job, attempt, epoch)
if slot and slot.state ~= 'leased' then return 0 end
if not slot and not Leases.end_under(name, job, attempt, epoch) then return 0 end
Leases.extend_lease(attempt, args.lease_us)
return 1
