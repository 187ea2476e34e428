-- Why: predicts which jobs are leased next, so that a worker can prefetch their database rows. Read-only; the next
--   claim may return another job. Caller: jobs/execution/row_prefetch.py.
-- Keys: estimates, generation, heads, line, models, pool, rebuild, tenants, turn
-- Args:
--   pool: text
--   most: number, maximum count of job ids
-- Returns: up to `most` job ids, in the order in which slots that run all models would get them. Approximations: only a
--   tenant's first line counts, and a tenant contributes at most twice an equal share of the ids.
-- include: keys
-- include: index
-- include: pools
-- include: shares
-- include: line
local pool_name, most = args.pool, args.most

if not Index.is_whole() then return Index.refuse() end
local pool, found = Pools.load_pool(pool_name), {}

-- The tenant's first line in the queue: its first `count` tickets, and the rank (fifo score or start tag) of the first.
local function first_line(queue, tenant, rank, count)
  local name = redis.call('ZRANGE', Keys.models(queue.at, tenant), 0, 0)[1]
  local tickets = redis.call('ZRANGE', Line.named_line(pool, name, tenant), 0, count - 1, 'WITHSCORES')
  local seconds = pool.fifo and 0 or Shares.estimated_seconds(name:sub(2), tenant) / Pools.rules_of(tenant).weight
  return { tickets = tickets, at = 1, rank = tonumber(rank), seconds = seconds }
end

local function earliest(lines)
  local first
  for _, line in ipairs(lines) do
    if line.tickets[line.at] and (not first or line.rank < first.rank) then first = line end
  end
  return first
end

for _, queue in ipairs(Shares.queues_in_order(pool)) do
  local order = redis.call('ZRANGE', (pool.fifo and Keys.heads or Keys.turn)(queue.at), 0, most - 1, 'WITHSCORES')
  local lines, count = {}, math.ceil(2 * most / #order) * 2  -- per tenant: twice an equal share
  for i = 1, #order, 2 do lines[#lines + 1] = first_line(queue, order[i], order[i + 1], count) end
  local line = earliest(lines)
  while line and #found < most do
    found[#found + 1] = Line.job_of(line.tickets[line.at])
    line.at = line.at + 2
    line.rank = pool.fifo and tonumber(line.tickets[line.at + 1]) or line.rank + line.seconds
    line = earliest(lines)
  end
  if #found == most then break end
end
return found
