-- Why: lets the reconciler find waiting jobs of the database that have no ticket, lease or uncommitted end, and push
--   them.
-- Keys: generation, held, line, pool, rebuild
-- Args:
--   pool: text
--   tickets: records
--     job, model, tenant: text
--     priority: number
-- Returns: per ticket 1 if it waits, is leased, or its end is being committed; else 0
-- include: keys
-- include: index
-- include: pools
-- include: line
if not Index.is_open() then return Index.refuse() end
local pool, found = Pools.load_pool(args.pool), {}
for _, ticket in ipairs(args.tickets) do
  local line = Line.line_of(pool, Pools.asked_band(ticket.priority), ticket.model, ticket.tenant)
  local is_reachable = redis.call('ZSCORE', line, Line.member_of(ticket.job, ticket.priority))
    or redis.call('HEXISTS', Keys.held(), ticket.job) == 1
  found[#found + 1] = is_reachable and 1 or 0
end
return found
