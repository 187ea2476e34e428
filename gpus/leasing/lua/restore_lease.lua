-- Why: during a rebuild a live attempt of the database gets its slot back; its holder, if there is one, renews it.
-- Keys: KEYS[1] prefix
-- Args: clock, lease µs, then pool, slot, job, attempt, epoch, model, tenant, priority, fence, leased at µs, estimate,
--   µs since it was leased ('': as leased at says, in the fleet's time)
-- Returns: 1 if the attempt holds the slot now or its end is on its way; 0 if a later attempt holds it
-- include: gate
-- include: restore
if not is_open() then return refuse() end
local claim, held_us = read_claim(ARGV, 3, ''), tonumber(ARGV[14])
if held_us then claim.leased_us = now - held_us end
return restore_lease(claim, tonumber(ARGV[2])) and 1 or 0
