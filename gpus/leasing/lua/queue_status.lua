-- Why: collects everything that explains why a job waits, or would wait, in one call. The fields of the answer are
--   documented in gpus/leasing/values.py (`QueueStatus`).
-- Keys: asked, circuits, classes, depth, estimates, forecast, generation, heads, held, kept, leases, line, marks,
--   models, paid, parked, pool, running, server, serving, slot, states, tenants, turn
-- Args:
--   pool: text
--   job: text, '' for a job that was not pushed
--   model, tenant: text
--   priority: number
--   place_us: number
--   most_servers: number, servers examined at most
-- Returns: a JSON object, see `QueueStatus`; {"rebuilding": true} while the index is not whole
-- include: keys
-- include: call
-- include: index
-- include: pools
-- include: slots
-- include: classes
-- include: shares
-- include: line
-- include: pick
-- include: forecast
local pool_name, job, model, tenant = args.pool, args.job, args.model, args.tenant
local priority, place, most = args.priority, args.place_us, args.most_servers
local MAX = { tenants = 32, lines = 16 }  -- examined for its position

if not Index.is_whole() then return cjson.encode({ rebuilding = true }) end
local pool = Pools.load_pool(pool_name)
local asked, member = Pools.asked_band(priority), Line.member_of(job, priority)
local queue, line = Pools.queue_of(pool, tenant, asked), Line.line_of(pool, asked, model, tenant)

-- The slots of servers that run the model, by what keeps each from the job.
local slots = { free = 0, resting = 0, circuit = 0, busy = 0, quarantined = 0, off = 0 }
local KIND = { leased = 'busy', adoptable = 'busy', settling = 'busy', quarantined = 'quarantined', off = 'off' }
local rest_us, circuit_us, free_us, hosts = math.huge, math.huge, Call.now, {}
local names = redis.call('SRANDMEMBER', Keys.serving(pool_name, model), most)
for _, name in ipairs(names) do
  local server = Slots.read_server(name)
  local rests = server.rests_until > Call.now
  Slots.each_slot(server, function(slot)
    local kind = KIND[slot.state]
    if slot.state == 'free' then
      kind = 'free'
      if server.opens > 0 and (rests or server.probe ~= slot.name) then
        kind, circuit_us = 'circuit', math.min(circuit_us, math.max(0, server.rests_until - Call.now))
      elseif rests then
        kind, rest_us = 'resting', math.min(rest_us, server.rests_until - Call.now)
      else
        hosts[server.host], free_us = true, math.min(free_us, slot.since_us)
      end
    end
    slots[kind] = slots[kind] + 1
  end)
end

-- The last claim by a worker that could take one of the free slots.
local asked_us = 0
for host in pairs(hosts) do
  asked_us = math.max(asked_us, tonumber(redis.call('HGET', Keys.asked(pool_name), host) or 0))
end

local reasons = redis.call('HGET', Keys.parked(pool_name), tenant) or ''
-- a job that was not pushed yet would be parked on arrival
if job == '' and not reasons:find(Line.AT_MAX_RUNNING, 1, true) and Pools.is_at_max_running(tenant) then
  reasons = reasons .. Line.AT_MAX_RUNNING
end
local rank = job ~= '' and redis.call('ZRANK', line, member) or nil
local score = rank and tonumber(redis.call('ZSCORE', line, member)) or place + Line.level_of(member) * pool.head_start
local at, own = Forecast.position(pool, queue, Classes.read_classes(pool_name), {
  name = asked .. model, model = model, tenant = tenant, score = score, rank = rank, parked = reasons ~= '',
  comes_last = not rank,
}, MAX)
local higher = 0
for band = 1, queue.band do higher = higher + pool.queues[band].waiting end

-- How far the tenant's start tag is ahead of the next tenant's, in GPU-seconds.
local first = redis.call('ZRANGE', Keys.turn(queue.at), 0, 0, 'WITHSCORES')
local lead = first[1] and math.max(0, Forecast.start_tag(queue, tenant) - tonumber(first[2])) or 0

local guess, factors = Forecast.guess_start(pool_name, slots.free >= at and 0 or at)
local circuit = Classes.read_circuit(pool, model)
local kept_us = circuit and tonumber(redis.call('HGET', Keys.kept(pool_name), model)) or 0
local attempt = job ~= '' and redis.call('HGET', Keys.held(), job) or false

-- How often the ticket was passed over, for a warm model or on the server that it avoids.
local skips, since_us = 0, 0
if job ~= '' then skips, since_us = Line.read_mark(pool, member) end
local near = rank and Pick.near_server(pool, { model = model, member = member }) or ''
local patience_us = since_us > 0 and math.max(0, since_us + pool.patience - Call.now) or pool.patience

local function seconds(us) return us < math.huge and us / 1000000 or 0 end
return cjson.encode({
  rebuilding = false, held = attempt, in_line = rank and true or false, parked = reasons, fifo = pool.fifo,
  position = at, own_ahead = own - 1, higher_bands = higher, tenants = redis.call('ZCARD', Keys.turn(queue.at)),
  lead_seconds = lead, estimate_seconds = Shares.estimated_seconds(model, tenant),
  mean_seconds = Forecast.pace(pool_name).mean, working_slots = Forecast.pace(pool_name).slots,
  running = redis.call('SCARD', Keys.running(tenant)), max_running = Pools.rules_of(tenant).max_running,
  servers = redis.call('SCARD', Keys.serving(pool_name, model)), looked_at = #names, slots = slots,
  rest_seconds = seconds(rest_us), circuit_seconds = seconds(circuit_us),
  model_circuit = circuit and circuit.opens > 0 and
    (Classes.read_kept(pool_name).models[model] == 'half_open' and 'half_open' or 'open') or 'closed',
  model_circuit_seconds = math.max(0, kept_us - Call.now) / 1000000,
  passed_over = skips, most_passed_over = Pick.MAX_SKIPS, patience_seconds = patience_us / 1000000,
  near = near,
  free_seconds = (Call.now - free_us) / 1000000, asked_seconds = asked_us > 0 and (Call.now - asked_us) / 1000000 or -1,
  guess_seconds = guess, seen = factors[1], p50_log = factors[2], p90_log = factors[3],
})
