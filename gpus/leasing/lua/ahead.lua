-- Why: a worker prefetches the rows of the jobs that it will probably be given next. The script changes nothing and
--   promises nothing.
-- Keys: estimates, generation, heads, line, models, pool, rebuild, tenants, turn
-- Args:
--   pool: text
--   most: number, job ids at most
-- Returns: that many job ids at most, as slots that run all models would be given them; nothing is changed, and nothing
--   promised. Of a tenant with several lines the first one stands for all, and nobody is given more than twice an equal
--   part.
-- include: keys
-- include: index
-- include: pools
-- include: shares
-- include: line
local pool_name, most = args.pool, args.most

if not Index.is_whole() then return Index.refuse() end
local pool, found = Pools.load_pool(pool_name), {}

-- The first line of a tenant that waits in the queue: so many of its tickets, and when the first of them goes.
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
  local lines, count = {}, math.ceil(2 * most / #order) * 2  -- of each tenant twice its equal part
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
