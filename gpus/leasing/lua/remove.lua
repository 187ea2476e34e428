-- Why: a waiting job that is cancelled or late must leave the line before its row says so; not there = it runs.
-- Keys: KEYS[1] prefix
-- Args: clock, pool, job, model, tenant, priority
-- Returns: 1 if the ticket stood in line and is gone now, else 0
-- include: gate
-- include: line
-- include: forecast
local pool_name, job, model, tenant, priority = ARGV[2], ARGV[3], ARGV[4], ARGV[5], tonumber(ARGV[6])

if not is_open() then return refuse() end
local pool = load_pool(pool_name)
if not withdraw_ticket(pool, model, tenant, priority, job) then return 0 end
save_pool(pool)
forget_forecast(pool_name, job)
return 1
