-- Shares GPU-seconds between tenants and priority bands: estimates, guaranteed shares of bands, fair queueing, corrected
-- charges. docs/explanation/leasing.md ("The order of jobs") explains the rules.
-- include: keys
-- include: call
-- include: pools
-- include: slots
-- include: turns

-- The expected cost of a job in GPU-seconds: running means per model and tenant, and per model. While a job runs longer
-- than the mean, its time so far replaces the tenant's mean, stored as a negative number, until the next end: long jobs
-- end last, and the jobs after them must not be charged too little meanwhile.

local NEWEST_COUNTS = 0.05  -- with more, a few short jobs would make the next long ones too cheap

-- The estimated GPU-seconds of the tenant's next job of the model; 1 if unknown.
local function estimated_seconds(model, tenant)
  local learnt = Call.learnt
  if learnt and learnt.model == model and learnt.tenant == tenant then return learnt.seconds end
  local means = redis.call('HMGET', Keys.estimates(), model .. ':' .. tenant, model)
  return math.abs(means[1] or means[2] or 1)
end

-- A job has run for so many seconds, and still runs.
local function learn_longer(model, tenant, seconds)
  local of_tenant = model .. ':' .. tenant
  local mean = tonumber(redis.call('HGET', Keys.estimates(), of_tenant))
  if not mean or math.abs(mean) < seconds then redis.call('HSET', Keys.estimates(), of_tenant, -seconds) end
  Call.learnt = nil
end

-- A job ended after so many GPU-seconds: updates both means.
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
-- `allowance_of_higher`: GPU-seconds that higher bands may still use before the band is due. HIGHER_PER_LOWER times the
-- estimate of the job with which it began to wait, and of each job with which it overtook, are added; each dispatch of a
-- higher band reduces it. A band that is due and has no job for the slot earns no credit.

local HIGHER_PER_LOWER = 15  -- GPU-seconds of higher bands per one of a lower band that waits

-- charged_bands of a lease is a bit set: the bands whose `allowance_of_higher` its dispatch changed. Bits of lower bands:
-- 2 normal, 4 bulk.
local OWN_BAND = 1  -- the bit of the lease's own band, which overtook a higher one

-- Whether the band goes before higher ones.
local function is_due(queue) return queue.band > 0 and queue.allowance_of_higher <= 0 end

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

-- Counts waiting tickets added, or removed if negative.
local function count_waiting(queue, count, model, tenant)
  queue.waiting = queue.waiting + count
  if queue.waiting == 0 then
    queue.allowance_of_higher = math.max(queue.allowance_of_higher, 0)
  elseif queue.waiting == count and queue.band > 0 then
    queue.allowance_of_higher = math.max(queue.allowance_of_higher, HIGHER_PER_LOWER * estimated_seconds(model, tenant))
  end
end

-- A job of the queue was dispatched. Returns its charged_bands, to be corrected once its real seconds are known.
local function pay_bands(pool, queue, seconds, overtook)
  local charged_bands = 0
  for _, lower in ipairs(pool.queues) do
    if lower.band > queue.band then
      if lower.waiting == 0 then
        lower.allowance_of_higher = math.max(0, lower.allowance_of_higher - seconds)
      elseif lower.allowance_of_higher > 0 then
        lower.allowance_of_higher = lower.allowance_of_higher - seconds
        charged_bands = charged_bands + lower.band * 2
      end
    end
  end
  if overtook then
    queue.allowance_of_higher = queue.allowance_of_higher + HIGHER_PER_LOWER * seconds
    charged_bands = charged_bands + OWN_BAND
  end
  return charged_bands
end

-- Corrects `allowance_of_higher` of the charged bands by the error of the charge at dispatch.
local function correct_bands(pool, band, charged_bands, seconds)
  if charged_bands == 0 or seconds == 0 then return end
  if charged_bands % 2 == OWN_BAND then
    local own = pool.queues[band + 1]
    own.allowance_of_higher = own.allowance_of_higher + HIGHER_PER_LOWER * seconds
    if own.waiting == 0 then own.allowance_of_higher = math.max(0, own.allowance_of_higher) end
  end
  for _, lower in ipairs(pool.queues) do
    if lower.band > 0 and math.floor(charged_bands / (lower.band * 2)) % 2 == 1 then
      lower.allowance_of_higher = lower.allowance_of_higher - seconds
      if lower.waiting == 0 then lower.allowance_of_higher = math.max(0, lower.allowance_of_higher) end
    end
  end
end

-- Start-time fair queueing in GPU-seconds (Goyal, Vin, Cheng 1996): `turn` holds the start tags of backlogged tenants
-- (turns.lua), `paid` the finish tags of the others, and the virtual time is the start tag that was served last.
-- `since` holds when a tenant's backlog began. Only this file changes tags.

local LAG_SECONDS, LAG_JOBS = 600, 8  -- how far a tenant's tag may fall behind the virtual time

local function leave_turn(queue, tenant, tag)
  redis.call('ZREM', Keys.turn(queue.at), tenant)
  redis.call('HDEL', Keys.since(queue.at), tenant)
  redis.call('HSET', Keys.paid(queue.at), tenant, tag)
end

-- The start tag of a tenant that begins to wait, or waits already.
local function enter_turn(queue, tenant)
  local tag = redis.call('ZSCORE', Keys.turn(queue.at), tenant)
  if tag then return tag end
  tag = math.max(queue.virtual, tonumber(redis.call('HGET', Keys.paid(queue.at), tenant)) or 0)
  redis.call('HDEL', Keys.paid(queue.at), tenant)
  redis.call('HSET', Keys.since(queue.at), tenant, Call.now)
  redis.call('ZADD', Keys.turn(queue.at), tag, tenant)
  return tag
end

-- The tenant's last ticket was removed without dispatch, or the tenant is parked: its tag stays as it is.
local function withdraw_turn(queue, tenant)
  local tag = redis.call('ZSCORE', Keys.turn(queue.at), tenant)
  if tag then leave_turn(queue, tenant, tag) end
end

-- Charges a dispatched ticket. start: the tenant's tag; lines: its remaining lines. The lag is bounded: a tenant of a
-- rarely served model falls behind without end, and a newcomer for the same model, which begins at the virtual time,
-- would wait until all of that lag was made up.
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

-- Corrects the tenant's tag by the error of the charge at dispatch (charged_us). A tenant that waited ever since gets the
-- whole refund. For others the tag never falls below the virtual time by a refund, so that idle tenants earn no credit.
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

-- Corrects the charge of a lease, which was its estimate at dispatch. seconds: the real GPU-seconds, nil: the time held;
-- returned, and kept in the slot, so that a repeated end is not charged twice. The caller saves the pool and the slot.
local function correct_charge(pool, slot, seconds)
  seconds = seconds or (Call.now - slot.leased_us) / 1000000
  correct_turn(pool.queues[slot.band + 1], slot.tenant, seconds - slot.estimate, slot.leased_us)
  correct_bands(pool, slot.band, slot.charged_bands, seconds - slot.estimate)
  slot.estimate = seconds
  return seconds
end

-- Charges a job that runs longer than its charge for twice its time so far. Otherwise its tenant would take the slots of
-- others meanwhile, and be charged for all of it at its end. Saves the pool and the slot.
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
