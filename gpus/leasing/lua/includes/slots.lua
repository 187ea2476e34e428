-- Slots and GPU servers, each stored as one packed value.
-- include: keys
-- include: call

-- A slot is stored together with its lease, or its last one. States: free, leased, adoptable, settling, quarantined, off;
-- `states` counts them by pool.

-- The slot, or nil. home: the pool of its server; since_us: when a lease of it last began or ended. Of the lease: pool:
-- of its ticket; adopter: attempt id of the claim that adopts it, until it is taken over; host: of its worker; band: of
-- its ticket's queue; charged_bands: see shares.lua; follower: the prefetched next job, packed (assign.lua); rest_us: how
-- long it rested after its last failed adoption; rests_until: no claim adopts it before.
local function slot_of(name, packed)
  if not packed then return nil end
  local state, home, warm, fence, since_us, pool, job, attempt, epoch, model, tenant, priority, estimate, leased_us,
    worker, adopter, host, band, charged_bands, follower, rest_us, rests_until = cmsgpack.unpack(packed)
  return {
    name = name, state = state, home = home, warm = warm, fence = fence, since_us = since_us, pool = pool, job = job,
    attempt = attempt, epoch = epoch, model = model, tenant = tenant, priority = priority, estimate = estimate,
    leased_us = leased_us, worker = worker, adopter = adopter, host = host, band = band,
    charged_bands = charged_bands, follower = follower, rest_us = rest_us, rests_until = rests_until,
  }
end

-- The slot, or nil.
local function read_slot(name) return slot_of(name, redis.call('GET', Keys.slot(name))) end

-- The known ones of these slots, by name.
local function read_slots(names)
  local keys, slots = {}, {}
  for i, name in ipairs(names) do keys[i] = Keys.slot(name) end
  local found = keys[1] and redis.call('MGET', unpack(keys)) or {}
  for i, name in ipairs(names) do slots[name] = slot_of(name, found[i]) end
  return slots
end

-- Stores the slot.
local function save_slot(slot)
  redis.call('SET', Keys.slot(slot.name), cmsgpack.pack(slot.state, slot.home, slot.warm, slot.fence, slot.since_us,
    slot.pool, slot.job, slot.attempt, slot.epoch, slot.model, slot.tenant, slot.priority, slot.estimate,
    slot.leased_us, slot.worker, slot.adopter, slot.host, slot.band, slot.charged_bands, slot.follower, slot.rest_us,
    slot.rests_until))
end

-- A slot that is not stored yet; `set_state` stores it.
local function new_slot(name, home) return { name = name, home = home, fence = 0, since_us = Call.now } end

-- Saves the slot. since_us: when its last lease ended, nil: now.
local function set_state(slot, state, since_us)
  if slot.state ~= state then
    if slot.state then redis.call('HINCRBY', Keys.states(slot.home), slot.state, -1) end
    redis.call('HINCRBY', Keys.states(slot.home), state, 1)
  end
  slot.state, slot.since_us = state, since_us or Call.now
  save_slot(slot)
end

-- Deletes the slot.
local function delete_slot(slot)
  redis.call('HINCRBY', Keys.states(slot.home), slot.state, -1)
  redis.call('DEL', Keys.slot(slot.name))
end

-- Calls `act` with each stored slot of the server and its index.
local function each_slot(server, act)
  for index = 0, server.top - 1 do
    local slot = read_slot(server.name .. '/' .. index)
    if slot then act(slot, index) end
  end
end

-- GPU servers.

-- The server's name and the slot's index.
local function split_slot(slot)
  local server, index = slot:match('^(.*)/(%d+)$')
  return server, index and index + 0
end

-- The server, or nil. models: ',a,b,', sorted; slots: how many may be used; top: highest slot number plus one;
-- rests_until: µs. gone: removed or never configured, stored while a lease holds one of its slots. Of its circuit
-- (circuit.lua): strikes: failures in a row; failed_job: the job of the last one; opens: how often it opened in a row, 0
-- while closed; probe: the trial slot while half open; tenants: failures by tenant that an input may have caused, or nil.
-- registered_us: when its row was made; nil if unknown.
local function server_of(name, packed)
  if not packed then return nil end
  local pool, host, models, class, slots, top, desired, rests_until, gone, strikes, failed_job, opens, probe, tenants,
    registered_us = cmsgpack.unpack(packed)
  return {
    name = name, pool = pool, host = host, models = models, class = class, slots = slots, top = top,
    desired = desired, rests_until = rests_until, gone = gone, strikes = strikes or 0, failed_job = failed_job or '',
    opens = opens or 0, probe = probe, tenants = tenants, registered_us = registered_us,
  }
end

-- The server, or nil.
local function read_server(name) return server_of(name, redis.call('GET', Keys.server(name))) end

-- A slot, its server, and its number on the server.
local function read_with_server(slot_name)
  local server_name, index = split_slot(slot_name)
  local packed = redis.call('MGET', Keys.slot(slot_name), Keys.server(server_name))
  return slot_of(slot_name, packed[1]), server_of(server_name, packed[2]), index
end

-- Stores the server.
local function save_server(server)
  redis.call('SADD', Keys.servers(), server.name)
  redis.call('SET', Keys.server(server.name), cmsgpack.pack(server.pool, server.host, server.models, server.class,
    server.slots, server.top, server.desired, server.rests_until, server.gone, server.strikes, server.failed_job,
    server.opens, server.probe, server.tenants, server.registered_us))
end

-- The slot and its server, created if unknown: a slot may be held although its server was never configured. Such a
-- server counts as removed, and is deleted with the slot.
local function ensure_slot(slot, pool)
  local name, index = split_slot(slot)
  local server = read_server(name) or {
    name = name, pool = pool, host = '', models = ',', class = '', slots = 0, top = 0, desired = 'off',
    rests_until = 0, gone = true, strikes = 0, failed_job = '', opens = 0,
  }
  if server.top <= index then
    server.top = index + 1
    save_server(server)
  end
  return read_slot(slot) or new_slot(slot, server.pool), server
end

return {
  delete_slot = delete_slot, each_slot = each_slot, new_slot = new_slot, ensure_slot = ensure_slot,
  read_server = read_server, read_slot = read_slot, read_slots = read_slots, read_with_server = read_with_server,
  save_server = save_server, save_slot = save_slot, set_state = set_state, split_slot = split_slot,
}
