-- Rules of tenants and pools, and a pool's three queues.
-- include: keys
-- include: call

-- Operator rules of a tenant: its weight, its highest band, how many of its jobs may run at once. A tenant without rules
-- has the defaults.

local DEFAULT_BAND = 1  -- normal

-- Unpacks and caches the rules: {weight, band (0 to 2), max_running (nil: no limit)}.
local function cache_rules(tenant, packed)
  local found = { weight = 1, band = DEFAULT_BAND }
  if packed then found.weight, found.band, found.max_running = cmsgpack.unpack(packed) end
  Call.rules[tenant] = found
  return found
end

-- The tenant's rules, cached for this call.
local function rules_of(tenant) return Call.rules[tenant] or cache_rules(tenant, redis.call('HGET', Keys.tenants(), tenant)) end

-- Reads the rules of several tenants at once into the cache. tenants: {{name}, …}.
local function read_rules(tenants)
  local names = {}
  for _, one in ipairs(tenants) do
    if not Call.rules[one.name] then names[#names + 1] = one.name end
  end
  if not names[1] then return end
  for i, packed in ipairs(redis.call('HMGET', Keys.tenants(), unpack(names))) do cache_rules(names[i], packed) end
end

-- Stores the tenant's rules.
local function save_rules(tenant, found)
  Call.rules[tenant] = found
  redis.call('HSET', Keys.tenants(), tenant, cmsgpack.pack(found.weight, found.band, found.max_running))
end

-- Whether the tenant is at max_running, over all pools of the fleet.
local function is_at_max_running(tenant)
  local max_running = rules_of(tenant).max_running
  return max_running ~= nil and redis.call('SCARD', Keys.running(tenant)) >= max_running
end

-- A pool's rules and its three queues, one per band, in one packed value that a script reads and writes once: a function
-- that changes a loaded pool says whether it or its caller saves it.

local PATIENCE_US, HEAD_START_US = 30000000, 60000000
local SEVERAL = ','  -- cannot be a model's name

-- name; fifo; patience and head_start per priority level (µs); marked: number of tickets with a mark; parked: number of
-- parked tenants; failing: number of models with a record in `circuits`; only: the only model ever pushed, '', or
-- SEVERAL; marks: see line.lua; queues[1..3] of {band, pool, at: its part of key names, mixed: whether orders by model
-- are kept too, waiting: tickets without those of parked tenants, allowance_of_higher: GPU-seconds of higher bands before
-- this one is due (shares.lua), virtual: the virtual time of its fair order}.
local function load_pool(name)
  if Call.pools[name] then return Call.pools[name] end
  local packed = redis.call('GET', Keys.pool(name))
  local fifo, patience, head_start, marked, parked, failing, only = false, PATIENCE_US, HEAD_START_US, 0, 0, 0, ''
  local w0, v0, w1, o1, v1, w2, o2, v2 = 0, 0, 0, 0, 0, 0, 0, 0
  if packed then
    fifo, patience, head_start, marked, parked, failing, only, w0, v0, w1, o1, v1, w2, o2, v2 = cmsgpack.unpack(packed)
  end
  local mixed = only == SEVERAL
  Call.pools[name] = {
    name = name, fifo = fifo, patience = patience, head_start = head_start, marked = marked, parked = parked,
    failing = failing, only = only, marks = {}, queues = {
      { band = 0, pool = name, at = name .. ':0', mixed = mixed, waiting = w0, allowance_of_higher = 0, virtual = v0 },
      { band = 1, pool = name, at = name .. ':1', mixed = mixed, waiting = w1, allowance_of_higher = o1, virtual = v1 },
      { band = 2, pool = name, at = name .. ':2', mixed = mixed, waiting = w2, allowance_of_higher = o2, virtual = v2 },
    },
  }
  return Call.pools[name]
end

-- Stores the pool.
local function save_pool(pool)
  local a, b, c = pool.queues[1], pool.queues[2], pool.queues[3]
  redis.call('SET', Keys.pool(pool.name), cmsgpack.pack(pool.fifo, pool.patience, pool.head_start, pool.marked,
    pool.parked, pool.failing, pool.only, a.waiting, a.virtual, b.waiting, b.allowance_of_higher, b.virtual,
    c.waiting, c.allowance_of_higher, c.virtual))
end

-- The band (0 to 2) of a priority 1..9: three bands of three levels.
local function asked_band(priority) return math.floor((priority - 1) / 3) end

-- The queue of the tenant's jobs that ask for this band: the band is lowered to the granted one.
local function queue_of(pool, tenant, asked) return pool.queues[math.max(asked, rules_of(tenant).band) + 1] end

-- Called for a ticket's model. While a pool has one model only, the queue's order serves as the model's; the second model
-- copies it into an order of its own.
local function register_model(pool, model)
  if pool.only == model or pool.only == SEVERAL then return end
  if pool.only == '' then
    pool.only = model
    return
  end
  for _, queue in ipairs(pool.queues) do
    for _, order in ipairs({ Keys.turn, Keys.heads }) do
      redis.call('ZUNIONSTORE', order(queue.at, pool.only), 1, order(queue.at))
    end
    queue.mixed = true
  end
  pool.only = SEVERAL
end

return {
  asked_band = asked_band, is_at_max_running = is_at_max_running, load_pool = load_pool, queue_of = queue_of,
  read_rules = read_rules, register_model = register_model, rules_of = rules_of, save_pool = save_pool,
  save_rules = save_rules,
}
