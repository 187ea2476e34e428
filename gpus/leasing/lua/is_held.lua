-- Why: whoever repairs must know whether an attempt still has its lease, or an end that is being committed. A follower
--   may have begun without Redis having heard of it yet.
-- Keys: KEYS[1] prefix
-- Args:
--   slot, job, attempt: text
--   epoch: number
-- Returns: 1 or 0
-- include: gate
-- include: ends
local slot, job, attempt, epoch = args.slot, args.job, args.attempt, args.epoch

if not is_open() then return refuse() end
local is_held = held_under(slot, job, attempt, epoch) or end_under(slot, job, attempt, epoch)
  or followed_under(slot, job, attempt, epoch)
return is_held and 1 or 0
