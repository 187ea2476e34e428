-- A pool's rules and its three queues, one per band. They are one packed value, read once and written once per
-- script: whoever loads a pool and changes anything in it saves it.
-- include: keys

local PATIENCE_US = 30000000

-- name, fifo, patience (µs), marked (tickets with a mark), parked (tenants), and queues[1..3] of {band, at, waiting,
-- passed, virtual}: tickets in it without those of parked tenants, dispatches of higher bands it waited through, and
-- the virtual time of its fair order.
local function load_pool(name)
  local packed = redis.call('GET', key('pool', name))
  local fifo, patience, marked, parked, w0, v0, w1, p1, v1, w2, p2, v2 = false, PATIENCE_US, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0
  if packed then fifo, patience, marked, parked, w0, v0, w1, p1, v1, w2, p2, v2 = cmsgpack.unpack(packed) end
  return {
    name = name, fifo = fifo, patience = patience, marked = marked, parked = parked, queues = {
      { band = 0, at = name .. ':0', waiting = w0, passed = 0, virtual = v0 },
      { band = 1, at = name .. ':1', waiting = w1, passed = p1, virtual = v1 },
      { band = 2, at = name .. ':2', waiting = w2, passed = p2, virtual = v2 },
    },
  }
end

local function save_pool(pool)
  local a, b, c = pool.queues[1], pool.queues[2], pool.queues[3]
  redis.call('SET', key('pool', pool.name), cmsgpack.pack(pool.fifo, pool.patience, pool.marked, pool.parked,
    a.waiting, a.virtual, b.waiting, b.passed, b.virtual, c.waiting, c.passed, c.virtual))
end

-- Priorities 1..9 are three bands of three levels.
local function queue_of(pool, priority) return pool.queues[math.floor((priority - 1) / 3) + 1] end
