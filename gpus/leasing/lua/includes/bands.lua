-- How the bands share. A higher band goes first; but of the GPU-seconds, not of the jobs, a lower band that waits gets
-- one part for fifteen of higher ones. `owes` is what it still lets pass: fifteen times the estimate of the first job
-- with which it begins to wait, and of each with which it overtook; every dispatch of a higher band pays it off.
-- Whoever owes nothing is due. Nothing is saved up: who is due and was not served (no job of its for that slot) gains
-- no more by it.
-- include: pools
-- include: estimate

local LOWER_LETS_PASS = 15
local OVERTOOK = 1  -- in a lease's dues, beside the bands that it paid off: 2 for normal, 4 for bulk

local function is_due(queue) return queue.band > 0 and queue.owes <= 0 end

-- The queues with tickets, in the order in which they are served now.
local function queues_in_order(pool)
  local due, others = {}, {}
  for _, queue in ipairs(pool.queues) do
    if queue.waiting > 0 then
      local group = is_due(queue) and due or others
      group[#group + 1] = queue
    end
  end
  if not due[1] then return others end
  for _, queue in ipairs(others) do due[#due + 1] = queue end
  return due
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
