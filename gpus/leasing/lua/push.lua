-- Why: puts waiting jobs into the line, and says how many wakes became useful by it. A job that is leased or
-- whose end is being committed must not stand in line.
-- Keys: KEYS[1] prefix
-- Args: clock, pool, head start µs per priority level, then per ticket: job, model, tenant, priority, place µs,
--   server to avoid or ''
-- Returns: {{outcome, position, …}, {pool, host, count, …}}; outcomes: 1 leased (a forecast), 2 queued,
--   3 duplicate, 4 held
-- include: gate
-- include: pick
-- include: wakes
local pool, head_start_us = ARGV[2], tonumber(ARGV[3])
local LEASED, QUEUED, DUPLICATE, HELD = 1, 2, 3, 4
local FIELDS = 6

local whole = gate.is_whole()
if not whole and not gate.is_filling() then return gate.refuse() end
redis.call('SADD', key.pools, pool)
local fifo = redis.call('HGET', key.pool(pool), 'algorithm') == 'fifo'
local classes = servers.classes(pool)

-- Free slots by class and host that a model could use, looked up once: {{host, count}, …} per class.
local open = {}
local function open_hosts(class)
  if not open[class] then
    local flat, hosts = redis.call('ZRANGE', key.open(pool, class), 0, wakes.HOSTS - 1, 'WITHSCORES'), {}
    for i = 1, #flat, 2 do hosts[#hosts + 1] = { flat[i], tonumber(flat[i + 1]) } end
    open[class] = hosts
  end
  return open[class]
end

local free_for = {}
local function free_slots(model)
  if not free_for[model] then
    local count = 0
    for _, class in ipairs(classes) do
      if pick.serves(class[2], model) then
        for _, host in ipairs(open_hosts(class[1])) do count = count + host[2] end
      end
    end
    free_for[model] = count
  end
  return free_for[model]
end

-- An estimate: all higher bands go first; in a fair band everybody's tickets take turns.
local function position(band, model, tenant, member)
  local depth = redis.call('HMGET', key.depth(pool), '0', '1', '2')
  local ahead = 0
  for higher = 0, band - 1 do ahead = ahead + (tonumber(depth[higher + 1]) or 0) end
  local in_band = tonumber(depth[band + 1])
  if fifo then return ahead + in_band end
  local own = redis.call('ZRANK', key.line(pool, band, model, tenant), member) + 1
  return ahead + math.min(in_band, own * redis.call('ZCARD', key.turn(pool, band)))
end

local results, added = {}, {}
for i = 4, #ARGV, FIELDS do
  local job, model, tenant, priority, place, avoid =
    ARGV[i], ARGV[i + 1], ARGV[i + 2], tonumber(ARGV[i + 3]), tonumber(ARGV[i + 4]), ARGV[i + 5]
  local band, member = line.band(priority), line.member(job, priority)
  local outcome, at = HELD, 1
  if redis.call('HEXISTS', key.held, job) == 0 then
    local score = place + (priority - 1) % 3 * head_start_us
    if line.add(pool, band, model, tenant, member, score) then
      if avoid ~= '' then redis.call('HSET', key.marks(pool), member, '0:' .. avoid) end
      added[model] = (added[model] or 0) + 1
      at = position(band, model, tenant, member)
      outcome = at <= free_slots(model) and LEASED or QUEUED
    else
      outcome, at = DUPLICATE, position(band, model, tenant, member)
    end
  end
  results[#results + 1] = outcome
  results[#results + 1] = at
end
if not whole then return { results, {} } end

-- Per host: min(its free slots - wakes under way, tickets pushed).
local spare = {}
local function spare_of(host)
  if not spare[host] then
    local count = -wakes.pending(pool, host)
    for _, class in ipairs(classes) do
      count = count + (tonumber(redis.call('ZSCORE', key.open(pool, class[1]), host)) or 0)
    end
    spare[host] = count
  end
  return spare[host]
end
local sent = {}
for model, wanted in pairs(added) do
  for _, class in ipairs(classes) do
    if wanted > 0 and pick.serves(class[2], model) then
      for _, host in ipairs(open_hosts(class[1])) do
        local count = math.min(wanted, host[2], spare_of(host[1]))
        if count > 0 then
          sent[host[1]] = (sent[host[1]] or 0) + count
          spare[host[1]], host[2], wanted = spare[host[1]] - count, host[2] - count, wanted - count
        end
      end
    end
  end
end
local reply = {}
for host, count in pairs(sent) do
  wakes.add(pool, host, count)
  for _, value in ipairs({ pool, host, count }) do reply[#reply + 1] = value end
end
return { results, reply }
