-- Why: a worker that stops lets go of a run that its server goes on with: adoptable at once, by its remote id. Where the
--   worker only claimed it and could not adopt it, it rests: it must not stand before what the pool can run.
-- Keys: KEYS[1] prefix
-- Args: clock, slot, job, attempt, epoch, worker, its first rest µs or '', its longest rest µs
-- Returns: 1 if it was the worker's, else 0
-- include: gate
-- include: leases
-- include: adoptable
-- include: follow
local name, job, attempt, epoch, worker = ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5]), ARGV[6]
local first_rest_us = tonumber(ARGV[7])

if not is_open() then return refuse() end
local slot = held_under(name, job, attempt, epoch)
if not slot or slot.state ~= 'leased' or not is_holder(slot, worker) then return 0 end
drop_follower(slot)
pass_lease(slot, '', epoch)
if first_rest_us then rest_lease(slot, first_rest_us, tonumber(ARGV[8])) end
make_adoptable(slot)
return 1
