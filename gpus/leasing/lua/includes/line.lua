-- The waiting tickets. A ticket stands in one zset per (queue, model, tenant), scored by its place plus its
-- priority's head start; its member is the level inside the band, then the job's id. Here, and only here, tickets
-- come and go, so that the counts and the two orders (turns and heads) over the lines are always true. A parked tenant
-- has its lines, and its models, and stands in neither order (parked.lua).
-- include: keys
-- include: pools
-- include: fair

local function member_of(job, priority) return (priority - 1) % 3 .. job end
local function job_of(member) return member:sub(2) end
local function level_of(member) return tonumber(member:sub(1, 1)) end

local function is_parked(pool, tenant)
  return pool.parked > 0 and redis.call('HEXISTS', key('parked', pool.name), tenant) == 1
end

-- So many tickets came, or left. Those of parked tenants are counted apart: they are nothing to wake anybody for.
local function count_tickets(pool, queue, model, count, parked)
  if parked then
    redis.call('HINCRBY', key('parked_depth', pool.name), model, count)
    return
  end
  redis.call('HINCRBY', key('depth', pool.name), model, count)
  queue.waiting = queue.waiting + count
  if queue.waiting == 0 then queue.passed = 0 end
end

-- False if it stands in line already.
local function add_ticket(pool, queue, model, tenant, member, score)
  if redis.call('ZADD', key('line', queue.at, model, tenant), 'NX', score, member) == 0 then return false end
  local parked = is_parked(pool, tenant)
  count_tickets(pool, queue, model, 1, parked)
  redis.call('ZADD', key('models', queue.at, tenant), 'LT', score, model)
  if parked then return true end
  redis.call('ZADD', key('turn', queue.at, model), enter_turn(queue, tenant), tenant)
  redis.call('ZADD', key('heads', queue.at, model), 'LT', score, tenant)
  redis.call('ZADD', key('heads', queue.at), 'LT', score, tenant)
  return true
end

-- The models that its tenant still waits for in this queue (ZRANGE WITHSCORES), or nil if the ticket did not stand
-- there. The caller says what the tenant pays: nothing (`withdraw_ticket`), or `pay_turn`.
local function remove_ticket(pool, queue, model, tenant, member, parked)
  local line, models = key('line', queue.at, model, tenant), key('models', queue.at, tenant)
  if redis.call('ZREM', line, member) == 0 then return nil end
  count_tickets(pool, queue, model, -1, parked)
  if pool.marked > 0 then pool.marked = pool.marked - redis.call('HDEL', key('marks', pool.name), member) end
  local head = redis.call('ZRANGE', line, 0, 0, 'WITHSCORES')
  if head[1] then
    redis.call('ZADD', models, head[2], model)
    if not parked then redis.call('ZADD', key('heads', queue.at, model), head[2], tenant) end
  else
    redis.call('ZREM', models, model)
    redis.call('ZREM', key('heads', queue.at, model), tenant)
    redis.call('ZREM', key('turn', queue.at, model), tenant)
  end
  local left = redis.call('ZRANGE', models, 0, -1, 'WITHSCORES')
  if parked then return left end
  if left[1] then
    redis.call('ZADD', key('heads', queue.at), left[2], tenant)
  else
    redis.call('ZREM', key('heads', queue.at), tenant)
  end
  return left
end

-- Takes back a ticket that nobody was given. False if it did not stand there.
local function withdraw_ticket(pool, queue, model, tenant, member)
  local left = remove_ticket(pool, queue, model, tenant, member, is_parked(pool, tenant))
  if left and not left[1] then withdraw_turn(queue, tenant) end
  return left ~= nil
end
