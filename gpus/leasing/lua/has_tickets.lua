-- Why: the reconciler asks which waiting jobs of the database are out of reach, and pushes those.
-- Keys: KEYS[1] prefix
-- Args: clock, pool, then per ticket: job, model, tenant, priority
-- Returns: 1 or 0 per ticket: in line, leased, or its end is being committed
-- include: gate
-- include: line
if not is_open() then return refuse() end
local pool, found = load_pool(ARGV[2]), {}
for i = 3, #ARGV, 4 do
  local job, model, tenant, priority = ARGV[i], ARGV[i + 1], ARGV[i + 2], tonumber(ARGV[i + 3])
  local line = line_of(pool, asked_band(priority), model, tenant)
  local is_reachable = redis.call('ZSCORE', line, member_of(job, priority))
    or redis.call('HEXISTS', Keys.held(), job) == 1
  found[#found + 1] = is_reachable and 1 or 0
end
return found
