-- Why: checks whether an attempt still has a lease or an uncommitted end. A follower counts, because its worker may
--   have started it before the release of its holder.
-- Keys: generation, rebuild, settling, slot
-- Args:
--   slot, job, attempt: text
--   epoch: number
-- Returns: 1 or 0
-- include: index
-- include: slots
-- include: leases
local slot, job, attempt, epoch = args.slot, args.job, args.attempt, args.epoch

if not Index.is_open() then return Index.refuse() end
local found = Slots.read_slot(slot)
local is_held = Leases.is_held_by_ref(found, job, attempt, epoch) or Leases.end_by_ref(slot, job, attempt, epoch)
  or Leases.follower_matches(found, job, attempt, epoch)
return is_held and 1 or 0
