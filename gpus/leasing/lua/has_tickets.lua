-- Why: the reconciler asks which waiting jobs of the database are out of reach, and pushes those.
-- Keys: KEYS[1] prefix
-- Args: clock, pool, then per ticket: job, model, tenant, priority
-- Returns: 1 or 0 per ticket: in line, leased, or settling
-- include: gate
-- include: line
local pool = ARGV[2]

if not gate.is_open() then return gate.refuse() end
local found = {}
for i = 3, #ARGV, 4 do
  local job, model, tenant, priority = ARGV[i], ARGV[i + 1], ARGV[i + 2], tonumber(ARGV[i + 3])
  local tickets = key.line(pool, line.band(priority), model, tenant)
  local reachable = redis.call('ZSCORE', tickets, line.member(job, priority))
    or redis.call('HEXISTS', key.held, job) == 1
  found[#found + 1] = reachable and 1 or 0
end
return found
