-- Why: the reconciler asks which waiting jobs of the database have no ticket, lease or pending end, and pushes those.
-- Keys: generation, held, line, pool, rebuild
-- Args:
--   pool: text
--   tickets: records
--     job, model, tenant: text
--     priority: number
-- Returns: 1 or 0 per ticket: in line, leased, or its end is being committed
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
