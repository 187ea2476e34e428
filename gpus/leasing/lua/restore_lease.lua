-- Why: during a rebuild a live attempt of the database gets its slot back; its holder, if there is one, renews it.
-- Keys: KEYS[1] prefix
-- Args: clock, lease µs, then pool, slot, job, attempt, epoch, model, tenant, priority, fence, leased at µs, estimate
-- Returns: 1 if the attempt holds the slot now or its end is on its way; 0 if a later attempt holds it
-- include: gate
-- include: restore
if not is_open() then return refuse() end
return restore_lease(read_claim(ARGV, 3, ''), tonumber(ARGV[2])) and 1 or 0
