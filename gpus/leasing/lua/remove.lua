-- Why: a waiting job that is cancelled or late must leave the line before its row says so; not there = it runs.
-- Keys: KEYS[1] prefix
-- Args: clock, pool, job, model, tenant, priority
-- Returns: 1 if the ticket stood in line and is gone now, else 0
-- include: gate
-- include: line
local pool, job, model, tenant, priority = ARGV[2], ARGV[3], ARGV[4], ARGV[5], tonumber(ARGV[6])

if not gate.is_open() then return gate.refuse() end
local band = line.band(priority)
local stood, left = line.remove(pool, band, model, tenant, line.member(job, priority))
if not stood then return 0 end
if left then fair.withdraw(pool, band, tenant) end
return 1
