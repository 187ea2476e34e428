-- The waiting tickets. A *line* is a zset of tickets per (pool, band asked for, model, tenant). Score: the ticket's place
-- plus its priority's head start; member: the level inside the band, then the job id. A line's key does not depend on
-- the tenant's granted band: `models`, per queue and tenant, lists the tenant's lines there (band asked for, then model)
-- in the tenant's own order, and a grant moves those entries. Only this file adds and removes tickets, so that the
-- counts and the two orders (turns and heads) over the lines are always right. A parked tenant keeps its lines and its
-- `models`, and is in neither order (parked.lua).
-- include: keys
-- include: pools
-- include: classes
-- include: turns
-- include: shares

-- Marks: facts about the few tickets that need them: how often a ticket was passed over, since when, the server that it
-- avoids, and the one that it prefers. pool.marks[member] caches them for this call; false: no mark.

-- Writes a ticket's mark.
local function set_mark(pool, member, skips, since_us, avoid, near)
  local mark = string.format('%d:%d:%s', skips, since_us, avoid)
  if near ~= '' then mark = mark .. ':' .. near end
  pool.marked = pool.marked + redis.call('HSET', Keys.marks(pool.name), member, mark)
  pool.marks[member] = mark
end

-- Number of skips; time (µs) of the first skip that counts for its patience; avoided server; preferred server. 0, 0, '', ''
-- without a mark.
local function read_mark(pool, member)
  if pool.marked == 0 then return 0, 0, '', '' end
  local mark = pool.marks[member]
  if mark == nil then
    mark = redis.call('HGET', Keys.marks(pool.name), member)
    pool.marks[member] = mark
  end
  if not mark then return 0, 0, '', '' end
  local skips, since_us, avoid, near = mark:match('^(%d+):(%d+):([^:]*):?(.*)$')
  return tonumber(skips), tonumber(since_us), avoid, near
end

local function drop_mark(pool, member)
  if pool.marked == 0 or pool.marks[member] == false then return end
  pool.marked = pool.marked - redis.call('HDEL', Keys.marks(pool.name), member)
  pool.marks[member] = false
end

local AT_MAX_RUNNING = 'm'  -- reason to park: the tenant is at max_running

-- A ticket's member: the priority's level in its band, then the job id.
local function member_of(job, priority) return (priority - 1) % 3 .. job end
-- The job id in a member.
local function job_of(member) return member:sub(2) end
-- The level in a member.
local function level_of(member) return member:byte() - 48 end

-- The key of a line.
local function line_of(pool, asked, model, tenant) return Keys.line(pool.name, asked, model, tenant) end

local function asked_of(name) return name:byte() - 48 end  -- its first character

-- The key of one of a tenant's lines, as `models` names it.
local function named_line(pool, name, tenant) return line_of(pool, name:sub(1, 1), name:sub(2), tenant) end

-- A job may ask for a higher band than granted. In its tenant's own order it keeps its priority's full head start (own
-- score); among tenants (fifo) it counts like the same level of its actual band (line score). Redis' text is returned
-- unchanged if nothing is added, because formatting a number is expensive.
local function own_score(pool, queue, name, score)
  local bands = queue.band - asked_of(name)
  return bands == 0 and score or score - bands * 3 * pool.head_start
end
local function line_score(pool, queue, name, own)
  local bands = queue.band - asked_of(name)
  return bands == 0 and own or own + bands * 3 * pool.head_start
end

-- Whether the tenant is parked in the pool.
local function is_parked(pool, tenant)
  return pool.parked > 0 and redis.call('HEXISTS', Keys.parked(pool.name), tenant) == 1
end

-- Returns true if it is the first reason.
local function add_reason(pool, tenant, reason)
  local reasons = redis.call('HGET', Keys.parked(pool.name), tenant) or ''
  if reasons:find(reason, 1, true) then return false end
  redis.call('HSET', Keys.parked(pool.name), tenant, reasons .. reason)
  if reasons == '' then pool.parked = pool.parked + 1 end
  return reasons == ''
end

-- Returns true if it was the last reason.
local function drop_reason(pool, tenant, reason)
  local reasons = redis.call('HGET', Keys.parked(pool.name), tenant) or ''
  local others = reasons:gsub(reason, '')
  if others == reasons then return false end
  if others ~= '' then
    redis.call('HSET', Keys.parked(pool.name), tenant, others)
    return false
  end
  redis.call('HDEL', Keys.parked(pool.name), tenant)
  pool.parked = pool.parked - 1
  return true
end

-- Counts tickets added, or removed if negative. Tickets of parked tenants are counted apart, because they need no wakes.
local function count_tickets(pool, queue, model, tenant, count, parked)
  if parked then
    redis.call('HINCRBY', Keys.parked_depth(pool.name), model, count)
    return
  end
  redis.call('HINCRBY', Keys.depth(pool.name), model, count)
  Shares.count_waiting(queue, count, model, tenant)
end

-- The tenant begins to wait in the pool: `waits` lists the pools that a change of its rules or running jobs affects.
local function enter_pool(pool, tenant)
  if redis.call('SADD', Keys.waits(tenant), pool.name) == 1 and Pools.is_at_max_running(tenant) then
    add_reason(pool, tenant, AT_MAX_RUNNING)
  end
end

-- Removes the pool from `waits` if the tenant has no line left in any of its queues.
local function leave_pool(pool, tenant)
  for _, queue in ipairs(pool.queues) do
    if redis.call('EXISTS', Keys.models(queue.at, tenant)) == 1 then return end
  end
  redis.call('SREM', Keys.waits(tenant), pool.name)
  if pool.parked > 0 then drop_reason(pool, tenant, AT_MAX_RUNNING) end
end

-- The tenant's first line in the queue for these few models (',a,b,'): its name and its score in `models`; or nil.
local function first_line(queue, tenant, models)
  local names = {}
  for asked = 0, queue.band do
    for model in models:gmatch('[^,]+') do names[#names + 1] = asked .. model end
  end
  local first, own
  for i, score in ipairs(redis.call('ZMSCORE', Keys.models(queue.at, tenant), unpack(names))) do
    score = tonumber(score)
    if score and (not own or score < own or (score == own and names[i] < first)) then first, own = names[i], score end
  end
  return first, own
end

-- The same for one model. lines: the tenant's lines as in `models`: all, or the first MAX_ORDERED + 1.
local function first_of_model(queue, tenant, model, lines)
  for i = 1, #lines, 2 do
    if lines[i]:sub(2) == model then return lines[i], lines[i + 1] end
  end
  if #lines > 2 * Turns.MAX_ORDERED then return first_line(queue, tenant, ',' .. model .. ',') end
  return nil
end

-- Updates the fifo order after the tenant's first line of a model has changed. lines: as above. is_behind: another line
-- was, and is, the tenant's first.
local function update_heads(pool, queue, tenant, model, lines, is_behind)
  if queue.mixed then
    local name, own = first_of_model(queue, tenant, model, lines)
    if name then
      redis.call('ZADD', Keys.heads(queue.at, model), line_score(pool, queue, name, own), tenant)
    else
      redis.call('ZREM', Keys.heads(queue.at, model), tenant)
    end
  end
  if is_behind then return end
  if lines[1] then
    redis.call('ZADD', Keys.heads(queue.at), line_score(pool, queue, lines[1], lines[2]), tenant)
  else
    redis.call('ZREM', Keys.heads(queue.at), tenant)
  end
end

-- The names of lines, without their scores.
local function names_of(lines)
  local names = {}
  for i = 1, #lines, 2 do names[#names + 1] = lines[i] end
  return names
end

-- Returns false if the ticket is waiting already.
local function add_ticket(pool, model, tenant, priority, member, score)
  local asked = Pools.asked_band(priority)
  local line = line_of(pool, asked, model, tenant)
  if redis.call('ZADD', line, 'NX', score, member) == 0 then return false end
  Pools.register_model(pool, model)
  local queue, name = Pools.queue_of(pool, tenant, asked), asked .. model
  local models = Keys.models(queue.at, tenant)
  local is_first = redis.call('ZADD', models, 'LT', 'CH', own_score(pool, queue, name, score), name) == 1
  local is_new = is_first and redis.call('ZCARD', line) == 1
  if is_new then enter_pool(pool, tenant) end
  local parked = is_parked(pool, tenant)
  count_tickets(pool, queue, model, tenant, 1, parked)
  if parked then return true end
  Classes.offer_trial(pool, model, tenant)
  if is_new then Turns.add_to_turn(queue, tenant, Shares.enter_turn(queue, tenant), name) end
  if is_first then
    local lines = redis.call('ZRANGE', models, 0, Turns.MAX_ORDERED, 'WITHSCORES')
    update_heads(pool, queue, tenant, model, lines, lines[1] ~= name)
  end
  return true
end

-- Removes a ticket. Returns the tenant's remaining lines in this queue (ZRANGE WITHSCORES, at most MAX_ORDERED + 1), or
-- nil if the ticket was not waiting. The caller charges the tenant (`pay_turn`) or not (`withdraw_ticket`). known: values
-- that the caller has read already: {line: the line's key; score: the ticket's own; first_two: the line's first two
-- tickets (ZRANGE WITHSCORES) if this is the first; is_only: whether the line is the tenant's only one}.
local function remove_ticket(pool, queue, name, tenant, member, parked, known)
  local line, models, model = known.line or named_line(pool, name, tenant), Keys.models(queue.at, tenant), name:sub(2)
  if redis.call('ZREM', line, member) == 0 then return nil end
  count_tickets(pool, queue, model, tenant, -1, parked)
  drop_mark(pool, member)
  local score = known.first_two and known.first_two[4]
  if not known.first_two then score = redis.call('ZRANGE', line, 0, 0, 'WITHSCORES')[2] end
  local own = score and own_score(pool, queue, name, score)
  if own then redis.call('ZADD', models, own, name) else redis.call('ZREM', models, name) end
  local left
  if known.is_only then
    left = own and { name, own } or {}
  else
    left = redis.call('ZRANGE', models, 0, Turns.MAX_ORDERED, 'WITHSCORES')
  end
  if not parked then
    if not own then Turns.drop_from_turn(queue, tenant, name, names_of(left)) end
    local is_behind = known.score and left[1] and left[1] ~= name and tonumber(left[2]) < known.score
    update_heads(pool, queue, tenant, model, left, is_behind)
  end
  if not left[1] then leave_pool(pool, tenant) end
  return left
end

-- Removes a ticket without dispatching it. Returns false if it was not waiting.
local function withdraw_ticket(pool, model, tenant, priority, job)
  local asked = Pools.asked_band(priority)
  local queue = Pools.queue_of(pool, tenant, asked)
  local parked = is_parked(pool, tenant)
  local left = remove_ticket(pool, queue, asked .. model, tenant, member_of(job, priority), parked, {})
  if left and not left[1] then Shares.withdraw_turn(queue, tenant) end
  return left ~= nil
end

return {
  add_reason = add_reason, add_ticket = add_ticket, count_tickets = count_tickets, drop_reason = drop_reason,
  first_line = first_line, is_parked = is_parked, job_of = job_of, level_of = level_of, line_of = line_of,
  line_score = line_score, member_of = member_of, named_line = named_line, names_of = names_of, own_score = own_score,
  read_mark = read_mark, remove_ticket = remove_ticket, update_heads = update_heads, set_mark = set_mark,
  withdraw_ticket = withdraw_ticket, AT_MAX_RUNNING = AT_MAX_RUNNING,
}
