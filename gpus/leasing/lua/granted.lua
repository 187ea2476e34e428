-- Why: finds the lease of a claim whose reply was lost. Read-only.
-- Keys: generation, leases, rebuild, slot
-- Args:
--   worker, attempt: text
-- Returns: the lease as an array (lease_reply), or nil
-- include: index
-- include: leases
local worker, attempt = args.worker, args.attempt

if not Index.is_open() then return Index.refuse() end
local slot = Leases.find_lease(attempt)
if not slot or slot.state ~= 'leased' or slot.worker ~= worker then return nil end
return Leases.lease_reply(slot, slot.adopter == attempt)
