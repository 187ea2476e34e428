-- Why: enqueues tickets of waiting jobs, and returns how many wakes they need. A job that is leased, or whose end
--   waits for its commit, gets no ticket. Caller: jobs/submission/submit.py.
-- Keys: broad, circuits, class_turn, classes, depth, estimates, forecast, foretold, generation, heads, held, kept,
--   leases, line, marks, models, open, paid, parked, parked_depth, pending, pool, pools, rebuild, running, server,
--   serving, since, states, tenants, turn, waits
-- Args:
--   pool: text
--   tickets: records
--     job, model, tenant: text
--     priority, place_us: number
--     avoid, near: text or nil, a server
-- Returns: {{outcome, position, p50 µs, p90 µs, starts seen, …}, wakes {pool, host, count, …}, {model that no server can
--   run because circuits are open, …}}; outcomes: 1 leased (a forecast), 2 queued, 3 duplicate, 4 held; p50 and p90
--   until the start, -1 if it starts now or the time cannot be known
-- include: keys
-- include: call
-- include: index
-- include: pools
-- include: classes
-- include: line
-- include: forecast
-- include: wakes
local pool_name = args.pool
local LEASED, QUEUED, DUPLICATE, HELD = 1, 2, 3, 4
local NOT_KNOWN = -1
local MAX = { tenants = 8, lines = 4 }  -- examined for a ticket's position
local NEW_US = 10000000  -- a ticket this young is last in a fifo queue, approximately

local whole = Index.is_whole()
if not whole and not Index.is_filling() then return Index.refuse() end
redis.call('SADD', Keys.pools(), pool_name)
local pool, classes = Pools.load_pool(pool_name), Classes.read_classes(pool_name)

local free_for = {}
local function free_slots(model)
  if free_for[model] then return free_for[model] end
  local count = 0
  for _, class in ipairs(classes) do
    if Classes.serves(class[2], model) then
      for _, host in ipairs(Wakes.open_hosts(pool_name, class[1])) do count = count + host[2] end
    end
  end
  free_for[model] = count
  return count
end

local able_for, failing = {}, {}
local function able(model)
  if able_for[model] then return able_for[model] end
  able_for[model] = Classes.able_to_run(pool_name, model)
  if able_for[model] == Classes.FAILING then failing[#failing + 1] = model end
  return able_for[model]
end

local function add_start(reply, model, at, waits, parked)
  local p50, p90, seen = NOT_KNOWN, NOT_KNOWN, 0
  if waits and able(model) == Classes.ABLE and not parked and Forecast.pace(pool_name).slots > 0 then
    local guess, factors = Forecast.guess_start(pool_name, at)
    p50 = guess * 1000000 * math.exp(factors[2])
    p90, seen = math.max(p50, guess * 1000000 * math.exp(factors[3])), factors[1]
  end
  reply[#reply + 1] = p50
  reply[#reply + 1] = p90
  reply[#reply + 1] = seen
end

local results, added, near = {}, {}, {}
for _, ticket in ipairs(args.tickets) do
  local job, model, tenant, priority, place = ticket.job, ticket.model, ticket.tenant, ticket.priority, ticket.place_us
  local asked, member = Pools.asked_band(priority), Line.member_of(job, priority)
  local outcome, at, parked = HELD, 1, false
  if redis.call('HEXISTS', Keys.held(), job) == 0 then
    local score = place + (priority - 1) % 3 * pool.head_start
    outcome = DUPLICATE
    local is_added = Line.add_ticket(pool, model, tenant, priority, member, score)
    parked = Line.is_parked(pool, tenant)
    if is_added then
      outcome = QUEUED
      if ticket.avoid or ticket.near then Line.set_mark(pool, member, 0, 0, ticket.avoid or '', ticket.near or '') end
      if not parked then added[model] = (added[model] or 0) + 1 end
      if ticket.near and not parked then near[#near + 1] = { model, ticket.near } end
    end
    local queue = Pools.queue_of(pool, tenant, asked)
    at = math.max(1, queue.waiting)  -- during a rebuild no caller needs the position
    if whole or Forecast.is_sampled(job) then
      at = Forecast.position(pool, queue, classes, {
        name = asked .. model, model = model, tenant = tenant, score = score, parked = parked,
        rank = redis.call('ZRANK', Line.line_of(pool, asked, model, tenant), member),
        comes_last = is_added and (not whole or place > Call.now - NEW_US),
      }, MAX)
    end
    local is_next = not parked and at <= free_slots(model)
    if outcome == QUEUED and Forecast.is_sampled(job) and not parked then Forecast.store_guess(pool, job, is_next and 0 or at) end
    if outcome == QUEUED and is_next then outcome = LEASED end
  end
  results[#results + 1] = outcome
  results[#results + 1] = at
  add_start(results, model, at, whole and (outcome == QUEUED or outcome == DUPLICATE), parked)
end
Pools.save_pool(pool)
if not whole then return { results, {}, failing } end

return { results, Wakes.wakes_for_tickets(pool_name, classes, added, near), failing }
