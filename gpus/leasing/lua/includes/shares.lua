-- How tenants and priority bands share GPU-seconds: estimates, guaranteed shares of bands, fair queueing, corrected
-- charges. docs/explanation/leasing.md ("Who goes next") explains the rules.
-- include: keys
-- include: call
-- include: pools
-- include: slots
-- include: turns

-- What a job is expected to cost, in GPU-seconds: running means per model and tenant, and per model. Where one of the
-- tenant's runs goes on for longer than the mean, what it took so far stands there, negative, until the next end: the
-- long ones are the last to be heard of, and what follows them must not be given away too cheaply meanwhile.

local NEWEST_COUNTS = 0.05  -- more lets a few short jobs make the next long ones cheap: shares swing

local function estimated_seconds(model, tenant)
  local learnt = Call.learnt
  if learnt and learnt.model == model and learnt.tenant == tenant then return learnt.seconds end
  local means = redis.call('HMGET', Keys.estimates(), model .. ':' .. tenant, model)
  return math.abs(means[1] or means[2] or 1)
end

-- A run of so many seconds goes on.
local function learn_longer(model, tenant, seconds)
  local of_tenant = model .. ':' .. tenant
  local mean = tonumber(redis.call('HGET', Keys.estimates(), of_tenant))
  if not mean or math.abs(mean) < seconds then redis.call('HSET', Keys.estimates(), of_tenant, -seconds) end
  Call.learnt = nil
end

local function learn_seconds(model, tenant, seconds)
  local of_tenant = model .. ':' .. tenant
  local means = redis.call('HMGET', Keys.estimates(), of_tenant, model)
  local tenants, models = (means[1] or seconds) + 0, (means[2] or seconds) + 0
  if tenants < 0 then tenants = math.max(-tenants, seconds) end
  tenants, models = tenants + NEWEST_COUNTS * (seconds - tenants), models + NEWEST_COUNTS * (seconds - models)
  redis.call('HSET', Keys.estimates(), of_tenant, tenants, model, models)
  Call.learnt = { model = model, tenant = tenant, seconds = tenants }
end

-- Guaranteed share of a lower band: while it waits, it gets 1 of 16 GPU-seconds, whatever higher bands ask for.
-- `owes`: GPU-seconds that higher bands may still use before the band is due: fifteen times the estimate of the first
-- job with which it began to wait, and of each job with which it overtook. Each dispatch of a higher band pays it off.
-- A band that is due and has no job for the slot saves nothing up.

local LOWER_LETS_PASS = 15
local OVERTOOK = 1  -- in a lease's dues, beside the bands that it paid off: 2 for normal, 4 for bulk

local function is_due(queue) return queue.band > 0 and queue.owes <= 0 end

-- The queues with tickets, in the order in which they are served now.
local function queues_in_order(pool)
  local order, due = {}, 0
  for _, queue in ipairs(pool.queues) do
    if queue.waiting > 0 and is_due(queue) then
      due = due + 1
      table.insert(order, due, queue)
    elseif queue.waiting > 0 then
      order[#order + 1] = queue
    end
  end
  return order
end

-- So many tickets came (or left) that a slot may take.
local function count_waiting(queue, count, model, tenant)
  queue.waiting = queue.waiting + count
  if queue.waiting == 0 then
    queue.owes = math.max(queue.owes, 0)
  elseif queue.waiting == count and queue.band > 0 then
    queue.owes = math.max(queue.owes, LOWER_LETS_PASS * estimated_seconds(model, tenant))
  end
end

-- A job of the queue was dispatched. Returns its dues: what must be corrected when its real seconds are known.
local function pay_bands(pool, queue, seconds, overtook)
  local dues = 0
  for _, lower in ipairs(pool.queues) do
    if lower.band > queue.band then
      if lower.waiting == 0 then
        lower.owes = math.max(0, lower.owes - seconds)
      elseif lower.owes > 0 then
        lower.owes = lower.owes - seconds
        dues = dues + lower.band * 2
      end
    end
  end
  if overtook then
    queue.owes = queue.owes + LOWER_LETS_PASS * seconds
    dues = dues + OVERTOOK
  end
  return dues
end

-- What was charged at dispatch was wrong by this much.
local function correct_bands(pool, band, dues, seconds)
  if dues == 0 or seconds == 0 then return end
  if dues % 2 == OVERTOOK then
    local own = pool.queues[band + 1]
    own.owes = own.owes + LOWER_LETS_PASS * seconds
    if own.waiting == 0 then own.owes = math.max(0, own.owes) end
  end
  for _, lower in ipairs(pool.queues) do
    if lower.band > 0 and math.floor(dues / (lower.band * 2)) % 2 == 1 then
      lower.owes = lower.owes - seconds
      if lower.waiting == 0 then lower.owes = math.max(0, lower.owes) end
    end
  end
end

-- Start-time fair queueing in GPU-seconds (Goyal, Vin, Cheng 1996): a backlogged tenant's start tag stands in
-- `turn` (turns.lua), the finish tag of one that is not in `paid`, and the virtual time is the start tag that was
-- served last. `since` says when a tenant's backlog began. Tags change only here.

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
  redis.call('HSET', Keys.since(queue.at), tenant, Call.now)
  redis.call('ZADD', Keys.turn(queue.at), tag, tenant)
  return tag
end

-- The tenant's last ticket was taken back, or it is parked: it pays nothing.
local function withdraw_turn(queue, tenant)
  local tag = redis.call('ZSCORE', Keys.turn(queue.at), tenant)
  if tag then leave_turn(queue, tenant, tag) end
end

-- One of the tenant's tickets was dispatched. start: its tag; lines: in which it still waits, as above. Where all
-- slots run all models nobody falls far behind. Who waits for what few slots run does, without end; were all of that
-- kept, whoever comes later for the same, and begins at the virtual time, would wait until it was made up for.
local function pay_turn(queue, tenant, start, seconds, lines)
  local weight = Pools.rules_of(tenant).weight
  queue.virtual = math.max(queue.virtual, start)
  start = math.max(start, queue.virtual - (LAG_SECONDS + LAG_JOBS * seconds) / weight)
  local finish = start + seconds / weight
  if lines[1] then
    Turns.move_turn(queue, tenant, finish, lines)
  else
    leave_turn(queue, tenant, finish)
  end
end

-- What was charged at dispatch was wrong by this much. Who was backlogged ever since (charged_us: the dispatch) gets
-- all of a refund: it waited for what it did not use. For anybody else a refund never reaches before the virtual
-- time: nobody saves up turns.
local function correct_turn(queue, tenant, seconds, charged_us)
  if seconds == 0 then return end
  local turn = redis.call('ZSCORE', Keys.turn(queue.at), tenant)
  local tag = (turn or redis.call('HGET', Keys.paid(queue.at), tenant) or queue.virtual) + 0
  local corrected, floor = tag + seconds / Pools.rules_of(tenant).weight, math.min(tag, queue.virtual)
  if corrected < floor then
    local since = turn and tonumber(redis.call('HGET', Keys.since(queue.at), tenant))
    if not since or charged_us < since then corrected = floor end
  end
  if turn then
    Turns.move_turn(queue, tenant, corrected, queue.mixed and Turns.some_lines(queue, tenant))
  else
    redis.call('HSET', Keys.paid(queue.at), tenant, corrected)
  end
end

-- The charge of a lease is corrected here, whenever one is removed: the estimate was charged at dispatch.

-- seconds: the real GPU-seconds, nil: the time held. Kept in the slot, so that an end that is taken back is not
-- charged twice. Returns them. The caller saves the lease's pool and the slot.
local function correct_charge(pool, slot, seconds)
  seconds = seconds or (Call.now - slot.leased_us) / 1000000
  correct_turn(pool.queues[slot.band + 1], slot.tenant, seconds - slot.estimate, slot.leased_us)
  correct_bands(pool, slot.band, slot.dues, seconds - slot.estimate)
  slot.estimate = seconds
  return seconds
end

-- A run that takes longer than it was charged for is charged for twice what it took so far. Its tenant would else
-- take the slots of others meanwhile, and owe for all of it in one moment, when it ends. Saves what it changes.
local function charge_on(slot)
  local held = (Call.now - slot.leased_us) / 1000000
  if held <= slot.estimate then return end
  local pool = Pools.load_pool(slot.pool)
  learn_longer(slot.model, slot.tenant, held)
  correct_charge(pool, slot, 2 * held)
  Pools.save_pool(pool)
  Slots.save_slot(slot)
end

return {
  charge_on = charge_on, correct_charge = correct_charge, correct_turn = correct_turn, count_waiting = count_waiting,
  enter_turn = enter_turn, estimated_seconds = estimated_seconds, is_due = is_due, learn_seconds = learn_seconds,
  pay_bands = pay_bands, pay_turn = pay_turn, queues_in_order = queues_in_order, withdraw_turn = withdraw_turn,
}
