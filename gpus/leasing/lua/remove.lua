-- Why: removes a waiting job's ticket before its row is marked cancelled or overdue. A job without a ticket is running.
-- Keys: broad, class_turn, classes, depth, estimates, foretold, generation, heads, kept, leases, line, marks, models,
--   paid, parked, parked_depth, pool, rebuild, since, tenants, turn, waits
-- Args:
--   pool, job, model, tenant: text
--   priority: number
-- Returns: 1 if the ticket was waiting and is removed now, else 0
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
