-- Start-time fair queueing in GPU-seconds (Goyal, Vin, Cheng 1996): a backlogged tenant's start tag stands in
-- `turn` (turns.lua), the finish tag of one that is not in `paid`, and the virtual time is the start tag that was
-- served last. `since` says when a tenant's backlog began. Tags change only here.
-- include: turns

local LAG_SECONDS, LAG_JOBS = 600, 8  -- so far a tenant may fall behind the virtual time; what is more is forgotten

local function leave_turn(queue, tenant, tag)
  redis.call('ZREM', Keys.turn(queue.at), tenant)
  redis.call('HDEL', Keys.since(queue.at), tenant)
  redis.call('HSET', Keys.paid(queue.at), tenant, tag)
end

-- The start tag of a tenant whose ticket is about to stand in line.
local function enter_turn(queue, tenant)
  local tag = redis.call('ZSCORE', Keys.turn(queue.at), tenant)
  if tag then return tag end
  tag = math.max(queue.virtual, tonumber(redis.call('HGET', Keys.paid(queue.at), tenant)) or 0)
  redis.call('HDEL', Keys.paid(queue.at), tenant)
  redis.call('HSET', Keys.since(queue.at), tenant, now)
  redis.call('ZADD', Keys.turn(queue.at), tag, tenant)
  return tag
end

-- The tenant's last ticket was taken back, or it is parked: it pays nothing.
local function withdraw_turn(queue, tenant)
  local tag = redis.call('ZSCORE', Keys.turn(queue.at), tenant)
  if tag then leave_turn(queue, tenant, tag) end
end

-- One of the tenant's tickets was dispatched. start: its tag; lines: in which it still waits, as above. Where all slots
-- run all models nobody falls far behind. Who waits for what few slots run does, without end; were all of that kept, whoever
-- comes later for the same, and begins at the virtual time, would wait until it was made up for.
local function pay_turn(queue, tenant, start, seconds, lines)
  local weight = rules_of(tenant).weight
  queue.virtual = math.max(queue.virtual, start)
  start = math.max(start, queue.virtual - (LAG_SECONDS + LAG_JOBS * seconds) / weight)
  local finish = start + seconds / weight
  if lines[1] then
    move_turn(queue, tenant, finish, lines)
  else
    leave_turn(queue, tenant, finish)
  end
end

-- What was charged at dispatch was wrong by this much. Who was backlogged ever since (charged_us: the dispatch) gets
-- all of a refund: it waited for what it did not use. For anybody else a refund never reaches before the virtual
-- time: nobody saves up turns.
local function correct_turn(queue, tenant, seconds, charged_us)
  if seconds == 0 then return end
  local turn = tonumber(redis.call('ZSCORE', Keys.turn(queue.at), tenant))
  local tag = turn or tonumber(redis.call('HGET', Keys.paid(queue.at), tenant)) or queue.virtual
  local corrected, floor = tag + seconds / rules_of(tenant).weight, math.min(tag, queue.virtual)
  if corrected < floor then
    local since = turn and tonumber(redis.call('HGET', Keys.since(queue.at), tenant))
    if not since or charged_us < since then corrected = floor end
  end
  if turn then
    move_turn(queue, tenant, corrected, queue.mixed and some_lines(queue, tenant))
  else
    redis.call('HSET', Keys.paid(queue.at), tenant, corrected)
  end
end
