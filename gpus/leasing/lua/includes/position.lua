-- Where a ticket stands in the line.
-- include: line

-- Its place, from 1, among its tenant's tickets for the same model in the queue: what asked for another band may stand
-- before it. rank: in its own line, from 0.
local function own_place(pool, queue, asked, model, tenant, rank, score)
  local own, stands = rank + 1, score - head_start(pool, queue, asked)
  for other = 0, queue.band do
    if other ~= asked and queue_of(pool, tenant, other) == queue then
      local before = string.format('(%.0f', stands + head_start(pool, queue, other))
      own = own + redis.call('ZCOUNT', line_of(pool, other, model, tenant), '-inf', before)
    end
  end
  return own
end

-- An estimate, from 1: all higher bands go first; in a fair queue everybody's tickets take turns. Of a parked tenant: the
-- place it would have if it went on now. own: its place in its own line, from 1. newcomer: a tenant whose ticket is only
-- thought of, else nil.
local function position(pool, queue, own, parked, newcomer)
  local ahead, waiting = 0, queue.waiting + (newcomer and 1 or 0)
  for higher = 1, queue.band do ahead = ahead + pool.queues[higher].waiting end
  if pool.fifo and not parked then return ahead + waiting end
  local tenants = redis.call('ZCARD', key('turn', queue.at))
  if newcomer and not redis.call('ZSCORE', key('turn', queue.at), newcomer) then tenants = tenants + 1 end
  return ahead + math.min(waiting, own * tenants) + (parked and own or 0)
end
