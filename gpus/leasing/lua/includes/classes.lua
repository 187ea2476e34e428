-- Which models run where: models blocked by an open circuit, classes of servers, and whether any server can run a model.
-- include: keys
-- include: call
-- include: pools
-- include: slots

-- Blocked models: no claim finds their tickets and no push sends wakes for them, because their circuit is open. `kept`
-- holds, by model, when the block ends (µs), then the attempt that is the trial. If that attempt has lost its lease
-- without a verdict, another one may be the trial. A blocked model has a record in `circuits`, so that a pool without
-- records needs no read.

local BY = 'by:'  -- prefix of the trial's attempt id

-- Drops the cached blocks of this call.
local function forget_kept(pool) Call.kept[pool] = nil end

-- The model's circuit, or nil: {strikes: failures in a row; failed_job: of the last one; servers: ',a,b,' where it
-- failed; opens: how often it opened in a row; tenants: failures by tenant; alone: the tenant that alone caused the
-- opening, or ''}. The caller saves the pool, which counts the records.
local function read_circuit(pool, model)
  local packed = pool.failing > 0 and redis.call('HGET', Keys.circuits(pool.name), model)
  if not packed then return nil end
  local strikes, failed_job, servers, opens, tenants, alone = cmsgpack.unpack(packed)
  return { strikes = strikes, failed_job = failed_job, servers = servers, opens = opens, tenants = tenants or {}, alone = alone or '' }
end

-- The tenant has a job for the model: if one other tenant alone opened its circuit, it is half open from now on.
local function offer_trial(pool, model, tenant)
  if pool.failing == 0 then return end
  local until_us = tonumber(redis.call('HGET', Keys.kept(pool.name), model))
  if not until_us or until_us <= Call.now then return end
  local circuit = read_circuit(pool, model)
  if circuit.alone == '' or circuit.alone == tenant then return end
  redis.call('HSET', Keys.kept(pool.name), model, string.format('%.0f', Call.now))
  forget_kept(pool.name)
end

local function state_of_kept(value)
  local until_us = tonumber(value)
  if until_us then return until_us > Call.now and 'kept' or 'half_open' end
  return redis.call('HEXISTS', Keys.leases(), value:sub(#BY + 1)) == 1 and 'kept' or 'half_open'
end

-- {any: whether a model is blocked, models: {model = 'kept' (blocked) or 'half_open'}}
local function read_kept(pool)
  if Call.kept[pool] then return Call.kept[pool] end
  local found = { any = false, models = {} }
  local flat = Pools.load_pool(pool).failing > 0 and redis.call('HGETALL', Keys.kept(pool)) or {}
  for i = 1, #flat, 2 do
    found.models[flat[i]] = state_of_kept(flat[i + 1])
    found.any = found.any or found.models[flat[i]] == 'kept'
  end
  Call.kept[pool] = found
  return found
end

-- These models (',a,b,') without the blocked ones.
local function without_kept(pool, models)
  if Pools.load_pool(pool).failing == 0 then return models end
  local found = read_kept(pool)
  if not found.any then return models end
  local left = ','
  for model in models:gmatch('[^,]+') do
    if found.models[model] ~= 'kept' then left = left .. model .. ',' end
  end
  return left
end

-- The attempt takes a ticket of this model: if the circuit is half open, the attempt is its trial.
local function begin_trial(pool, model, attempt)
  if Pools.load_pool(pool).failing == 0 or not read_kept(pool).models[model] then return end
  redis.call('HSET', Keys.kept(pool), model, BY .. attempt)
  forget_kept(pool)
end

-- Servers of a pool that run the same models form a class: a claim searches once per class, not once per server.

-- Whether the model is in the list (',a,b,').
local function serves(models, model) return models:find(',' .. model .. ',', 1, true) ~= nil end

-- The models in both lists (',a,b,').
local function shared_models(some, models)
  local both = ','
  for model in some:gmatch('[^,]+') do
    if serves(models, model) then both = both .. model .. ',' end
  end
  return both
end

-- The pool's classes, most specialised first: {{class, models}, ...}, including blocked models.
local function all_classes(pool)
  if Call.class_lists[pool] then return Call.class_lists[pool] end
  local flat, classes = redis.call('HGETALL', Keys.classes(pool)), {}
  for i = 1, #flat, 2 do classes[#classes + 1] = { flat[i], flat[i + 1] } end
  if #classes > 1 then table.sort(classes, function(a, b) return a[1] < b[1] end) end
  Call.class_lists[pool] = classes
  return classes
end

-- The same, without blocked models.
local function read_classes(pool)
  local classes = {}
  for i, class in ipairs(all_classes(pool)) do classes[i] = { class[1], without_kept(pool, class[2]) } end
  return classes
end

-- Whether any server can run a model, now or once a slot is free. Servers that are off or draining are not in `serving`,
-- nor is any server for a paused model.

local NO_SERVER = 0
local FAILING, ABLE = 1, 2
local MAX_SAMPLED = 32

local function has_open_circuit(server) return server.opens > 0 and server.rests_until > Call.now end

-- FAILING: the model's circuit is open, or the circuit of every server that runs it (of many servers: a random sample).
local function able_to_run(pool_name, model)
  if read_kept(pool_name).models[model] == 'kept' then return FAILING end
  local serving = Keys.serving(pool_name, model)
  local one = redis.call('SRANDMEMBER', serving)
  if not one then return NO_SERVER end
  if not has_open_circuit(Slots.read_server(one)) then return ABLE end
  for _, name in ipairs(redis.call('SRANDMEMBER', serving, MAX_SAMPLED)) do
    if not has_open_circuit(Slots.read_server(name)) then return ABLE end
  end
  return FAILING
end

return {
  able_to_run = able_to_run, all_classes = all_classes, forget_kept = forget_kept,
  begin_trial = begin_trial, offer_trial = offer_trial, read_circuit = read_circuit,
  read_classes = read_classes, read_kept = read_kept, serves = serves, shared_models = shared_models,
  without_kept = without_kept, BY = BY, FAILING = FAILING, ABLE = ABLE,
}
