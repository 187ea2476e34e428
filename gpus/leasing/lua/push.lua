-- Why: puts waiting jobs into the line, and says how many wakes became useful by it. A job that is leased or
--   whose end is being committed must not stand in line.
-- Keys: KEYS[1] prefix
-- Args: clock, pool, then per ticket: job, model, tenant, priority, place µs,
--   server to avoid or ''
-- Returns: {{outcome, position, …}, {pool, host, count, …}}; outcomes: 1 leased (a forecast), 2 queued,
--   3 duplicate, 4 held
-- include: gate
-- include: arrivals
-- include: position
-- include: forecast
local pool_name = ARGV[2]
local LEASED, QUEUED, DUPLICATE, HELD = 1, 2, 3, 4
local FIELDS = 6

local whole = is_whole()
if not whole and not is_filling() then return refuse() end
redis.call('SADD', key('pools'), pool_name)
local pool, classes = load_pool(pool_name), read_classes(pool_name)

local free_for = {}
local function free_slots(model)
  if free_for[model] then return free_for[model] end
  local count = 0
  for _, class in ipairs(classes) do
    if serves(class[2], model) then
      for _, host in ipairs(open_hosts(pool_name, class[1])) do count = count + host[2] end
    end
  end
  free_for[model] = count
  return count
end

local results, added = {}, {}
for i = 3, #ARGV, FIELDS do
  local job, model, tenant, priority, place, avoid =
    ARGV[i], ARGV[i + 1], ARGV[i + 2], tonumber(ARGV[i + 3]), tonumber(ARGV[i + 4]), ARGV[i + 5]
  local asked, member = asked_band(priority), member_of(job, priority)
  local outcome, at = HELD, 1
  if redis.call('HEXISTS', key('held'), job) == 0 then
    local score = place + (priority - 1) % 3 * pool.head_start
    outcome = DUPLICATE
    local stands = add_ticket(pool, model, tenant, priority, member, score)
    local parked = is_parked(pool, tenant)
    if stands then
      outcome = QUEUED
      if avoid ~= '' then set_mark(pool, member, 0, 0, avoid) end
      if not parked then added[model] = (added[model] or 0) + 1 end
    end
    local queue, rank = queue_of(pool, tenant, asked), redis.call('ZRANK', line_of(pool, asked, model, tenant), member)
    at = position(pool, queue, own_place(pool, queue, asked, model, tenant, rank, score), parked)
    local is_next = not parked and at <= free_slots(model)
    if outcome == QUEUED and is_foretold(job) and not parked then foretell(pool, job, is_next and 0 or at) end
    if outcome == QUEUED and is_next then outcome = LEASED end
  end
  results[#results + 1] = outcome
  results[#results + 1] = at
end
save_pool(pool)
if not whole then return { results, {} } end

return { results, wakes_for_tickets(pool_name, classes, added) }
