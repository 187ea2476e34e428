-- Why: the database knows that a lease's worker lives and holds it, though Redis does not hear of it: the lease goes on
--   for one lease time, as if it had been renewed.
-- Keys: KEYS[1] prefix
-- Args: clock, slot, job, attempt, epoch, lease µs
-- Returns: 1 if it is held or settling, else 0
-- include: gate
-- include: ends
local name, job, attempt, epoch = ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5])

if not is_whole() then return refuse() end
local slot = held_under(name, job, attempt, epoch)
if slot and slot.state ~= 'leased' then return 0 end
if not slot and not end_under(name, job, attempt, epoch) then return 0 end
extend_lease(attempt, tonumber(ARGV[6]))
return 1
