-- Why: takes a waiting job out of the line before its row says that it is cancelled or late. A job without a ticket
--   runs.
-- Keys: broad, class_turn, classes, depth, estimates, foretold, generation, heads, kept, leases, line, marks, models,
--   paid, parked, parked_depth, pool, rebuild, since, tenants, turn, waits
-- Args:
--   pool, job, model, tenant: text
--   priority: number
-- Returns: 1 if the ticket stood in line and is gone now, else 0
-- include: index
-- include: pools
-- include: line
-- include: forecast
local pool_name, job, model, tenant, priority = args.pool, args.job, args.model, args.tenant, args.priority

if not Index.is_open() then return Index.refuse() end
local pool = Pools.load_pool(pool_name)
if not Line.withdraw_ticket(pool, model, tenant, priority, job) then return 0 end
Pools.save_pool(pool)
Forecast.forget_forecast(pool_name, job)
return 1
