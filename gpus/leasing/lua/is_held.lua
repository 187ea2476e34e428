-- Why: whoever repairs must know whether an attempt still has its lease, or an end that is being committed.
-- Keys: KEYS[1] prefix
-- Args: clock, slot, job, attempt, epoch
-- Returns: 1 or 0
-- include: gate
-- include: ends
local slot, job, attempt, epoch = ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5])

if not is_open() then return refuse() end
return (held_under(slot, job, attempt, epoch) or end_under(slot, job, attempt, epoch)) and 1 or 0
