-- The waiting tickets. A ticket stands in one zset per (band, model, tenant), scored by its place plus its
-- priority's head start; its member is the level inside the band, then the job's id. Here, and only here, tickets
-- come and go, so that the counts and the two orders (turns and heads) over the lines are always true.
-- include: keys
-- include: fair
local line = {}

function line.band(priority) return math.floor((priority - 1) / 3) end
function line.member(job, priority) return (priority - 1) % 3 .. job end

-- False if it stands in line already.
function line.add(pool, band, model, tenant, member, score)
  if redis.call('ZADD', key.line(pool, band, model, tenant), 'NX', score, member) == 0 then return false end
  redis.call('HINCRBY', key.depth(pool), band, 1)
  redis.call('HINCRBY', key.depth(pool), band .. ':' .. model, 1)
  local tag = fair.enter(pool, band, tenant)
  redis.call('ZADD', key.turn_of(pool, band, model), tag, tenant)
  redis.call('ZADD', key.models(pool, band, tenant), 'LT', score, model)
  redis.call('ZADD', key.heads_of(pool, band, model), 'LT', score, tenant)
  redis.call('ZADD', key.heads(pool, band), 'LT', score, tenant)
  return true
end

-- Whether the ticket stood there, and whether its tenant has none left in this band. The caller then says what
-- it pays: `fair.withdraw` or `fair.dispatch`.
function line.remove(pool, band, model, tenant, member)
  local tickets = key.line(pool, band, model, tenant)
  if redis.call('ZREM', tickets, member) == 0 then return false end
  if redis.call('HINCRBY', key.depth(pool), band, -1) == 0 then
    redis.call('HDEL', key.pool(pool), 'passed:' .. band)
  end
  redis.call('HINCRBY', key.depth(pool), band .. ':' .. model, -1)
  redis.call('HDEL', key.marks(pool), member)
  local models = key.models(pool, band, tenant)
  local head = redis.call('ZRANGE', tickets, 0, 0, 'WITHSCORES')
  if head[1] then
    redis.call('ZADD', models, head[2], model)
    redis.call('ZADD', key.heads_of(pool, band, model), head[2], tenant)
  else
    redis.call('ZREM', models, model)
    redis.call('ZREM', key.heads_of(pool, band, model), tenant)
    redis.call('ZREM', key.turn_of(pool, band, model), tenant)
  end
  local first = redis.call('ZRANGE', models, 0, 0, 'WITHSCORES')
  if first[1] then
    redis.call('ZADD', key.heads(pool, band), first[2], tenant)
    return true, false
  end
  redis.call('ZREM', key.heads(pool, band), tenant)
  return true, true
end

-- Tickets of these models (',a,b,'), over all bands.
function line.waiting(pool, models)
  local fields = {}
  for model in models:gmatch('[^,]+') do
    for band = 0, 2 do fields[#fields + 1] = band .. ':' .. model end
  end
  local total = 0
  for first = 1, #fields, 1000 do  -- unpack has a limit
    local last = math.min(first + 999, #fields)
    for _, count in ipairs(redis.call('HMGET', key.depth(pool), unpack(fields, first, last))) do
      total = total + (tonumber(count) or 0)
    end
  end
  return total
end
