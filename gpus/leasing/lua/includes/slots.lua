-- Slots, each one packed value together with its lease (or its last one). States: free, leased, adoptable, settling,
-- quarantined, off. Whoever changes a slot saves it; `states` counts them by pool.
-- include: keys

-- nil if unknown. home: the pool of its server; since_us: when a lease of it last began or ended. Of the lease: pool:
-- the one it was given for; asked: who asked to adopt it, until it is taken over; host: of its driver; band: where its
-- ticket stood; dues: what it paid between the bands (bands.lua); follower: what
-- its holder runs next, packed (follow.lua); rest_us: how long it rested after its last failed adoption; rests_until:
-- until then no claim adopts it.
local function read_slot(name)
  local packed = redis.call('GET', Keys.slot(name))
  if not packed then return nil end
  local state, home, warm, fence, since_us, pool, job, attempt, epoch, model, tenant, priority, estimate, leased_us,
    worker, asked, host, band, dues, follower, rest_us, rests_until = cmsgpack.unpack(packed)
  return {
    name = name, state = state, home = home, warm = warm, fence = fence, since_us = since_us, pool = pool, job = job,
    attempt = attempt, epoch = epoch, model = model, tenant = tenant, priority = priority, estimate = estimate,
    leased_us = leased_us, worker = worker, asked = asked, host = host, band = band,
    dues = dues, follower = follower, rest_us = rest_us, rests_until = rests_until,
  }
end

local function save_slot(slot)
  redis.call('SET', Keys.slot(slot.name), cmsgpack.pack(slot.state, slot.home, slot.warm, slot.fence, slot.since_us,
    slot.pool, slot.job, slot.attempt, slot.epoch, slot.model, slot.tenant, slot.priority, slot.estimate,
    slot.leased_us, slot.worker, slot.asked, slot.host, slot.band, slot.dues, slot.follower, slot.rest_us,
    slot.rests_until))
end

-- A slot that nobody has heard of yet; it is stored with its first state.
local function new_slot(name, home) return { name = name, home = home, fence = 0, since_us = now } end

-- since_us: when its last lease ended, if that was not now.
local function set_state(slot, state, since_us)
  if slot.state ~= state then
    if slot.state then redis.call('HINCRBY', Keys.states(slot.home), slot.state, -1) end
    redis.call('HINCRBY', Keys.states(slot.home), state, 1)
  end
  slot.state, slot.since_us = state, since_us or now
  save_slot(slot)
end

local function delete_slot(slot)
  redis.call('HINCRBY', Keys.states(slot.home), slot.state, -1)
  redis.call('DEL', Keys.slot(slot.name))
end

local function each_slot(server, act)
  for index = 0, server.top - 1 do
    local slot = read_slot(server.name .. '/' .. index)
    if slot then act(slot, index) end
  end
end
