-- Why: puts waiting jobs into the line, and says how many wakes became useful by it. A job that is leased or
--   whose end is being committed must not stand in line.
-- Keys: KEYS[1] prefix
-- Args: clock, pool, head start µs per priority level, then per ticket: job, model, tenant, priority, place µs,
--   server to avoid or ''
-- Returns: {{outcome, position, …}, {pool, host, count, …}}; outcomes: 1 leased (a forecast), 2 queued,
--   3 duplicate, 4 held
-- include: gate
-- include: pick
-- include: wakes
local pool_name, head_start_us = ARGV[2], tonumber(ARGV[3])
local LEASED, QUEUED, DUPLICATE, HELD = 1, 2, 3, 4
local FIELDS = 6

local whole = is_whole()
if not whole and not is_filling() then return refuse() end
redis.call('SADD', key('pools'), pool_name)
local pool, classes = load_pool(pool_name), read_classes(pool_name)

-- Hosts with free slots of a class, looked up once: {{host, count}, …}.
local open = {}
local function open_hosts(class)
  if open[class] then return open[class] end
  local flat, hosts = redis.call('ZRANGE', key('open', pool_name, class), 0, WAKE_HOSTS - 1, 'WITHSCORES'), {}
  for i = 1, #flat, 2 do hosts[#hosts + 1] = { flat[i], tonumber(flat[i + 1]) } end
  open[class] = hosts
  return hosts
end

local free_for = {}
local function free_slots(model)
  if free_for[model] then return free_for[model] end
  local count = 0
  for _, class in ipairs(classes) do
    if serves(class[2], model) then
      for _, host in ipairs(open_hosts(class[1])) do count = count + host[2] end
    end
  end
  free_for[model] = count
  return count
end

-- An estimate: all higher bands go first; in a fair queue everybody's tickets take turns.
local function position(queue, model, tenant, member)
  local ahead = 0
  for higher = 1, queue.band do ahead = ahead + pool.queues[higher].waiting end
  if pool.fifo then return ahead + queue.waiting end
  local own = redis.call('ZRANK', key('line', queue.at, model, tenant), member) + 1
  return ahead + math.min(queue.waiting, own * redis.call('ZCARD', key('turn', queue.at)))
end

local results, added = {}, {}
for i = 4, #ARGV, FIELDS do
  local job, model, tenant, priority, place, avoid =
    ARGV[i], ARGV[i + 1], ARGV[i + 2], tonumber(ARGV[i + 3]), tonumber(ARGV[i + 4]), ARGV[i + 5]
  local queue, member = queue_of(pool, priority), member_of(job, priority)
  local outcome, at = HELD, 1
  if redis.call('HEXISTS', key('held'), job) == 0 then
    local score = place + (priority - 1) % 3 * head_start_us
    outcome = DUPLICATE
    if add_ticket(pool, queue, model, tenant, member, score) then
      outcome = QUEUED
      if avoid ~= '' then set_mark(pool, member, 0, avoid) end
      added[model] = (added[model] or 0) + 1
    end
    at = position(queue, model, tenant, member)
    if outcome == QUEUED and at <= free_slots(model) then outcome = LEASED end
  end
  results[#results + 1] = outcome
  results[#results + 1] = at
end
save_pool(pool)
if not whole then return { results, {} } end

-- Per host: min(its free slots - wakes under way, tickets pushed).
local spare = {}
local function spare_slots(host)
  if spare[host] then return spare[host] end
  local count = -pending_wakes(pool_name, host)
  for _, class in ipairs(classes) do count = count + listed(pool_name, class[1], host) end
  spare[host] = count
  return count
end
local sent = {}
for model, wanted in pairs(added) do
  for _, class in ipairs(classes) do
    if wanted > 0 and serves(class[2], model) then
      for _, host in ipairs(open_hosts(class[1])) do
        local count = math.max(0, math.min(wanted, host[2], spare_slots(host[1])))
        sent[host[1]] = (sent[host[1]] or 0) + count
        spare[host[1]], host[2], wanted = spare[host[1]] - count, host[2] - count, wanted - count
      end
    end
  end
end
local reply = {}
for host, count in pairs(sent) do
  if count > 0 then add_wakes(reply, pool_name, host, count) end
end
return { results, reply }
