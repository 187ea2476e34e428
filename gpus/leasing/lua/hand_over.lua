-- Why: a worker that stops lets go of a run that its server goes on with: adoptable at once, by its remote id.
-- Keys: KEYS[1] prefix
-- Args: clock, slot, job, attempt, epoch, worker
-- Returns: 1 if it was the worker's, else 0
-- include: gate
-- include: leases
-- include: adoptable
-- include: follow
local name, job, attempt, epoch, worker = ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5]), ARGV[6]

if not is_open() then return refuse() end
local slot = held_under(name, job, attempt, epoch)
if not slot or slot.state ~= 'leased' or not is_holder(slot, worker) then return 0 end
drop_follower(slot)
pass_lease(slot, '', epoch)
make_adoptable(slot)
return 1
