-- Why: whoever repairs must know whether an attempt still has its lease, or an end that is being committed.
-- Keys: KEYS[1] prefix
-- Args: clock, slot, job, attempt, epoch
-- Returns: 1 or 0
-- include: gate
-- include: leases
local slot, job, attempt, epoch = ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5])

if not gate.is_open() then return gate.refuse() end
if leases.held_under(slot, job, attempt, epoch) then return 1 end
local end_of = leases.read_settling(attempt)
if end_of and end_of.slot == slot and end_of.job == job and end_of.epoch == epoch then return 1 end
return 0
