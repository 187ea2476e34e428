-- Why: a waiting job that is cancelled or late must leave the line before its row says so; not there = it runs.
-- Keys: KEYS[1] prefix
-- Args:
--   pool, job, model, tenant: text
--   priority: number
-- Returns: 1 if the ticket stood in line and is gone now, else 0
-- include: gate
-- include: line
-- include: forecast
local pool_name, job, model, tenant, priority = args.pool, args.job, args.model, args.tenant, args.priority

if not is_open() then return refuse() end
local pool = load_pool(pool_name)
if not withdraw_ticket(pool, model, tenant, priority, job) then return 0 end
save_pool(pool)
forget_forecast(pool_name, job)
return 1
