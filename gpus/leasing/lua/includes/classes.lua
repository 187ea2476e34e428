-- Which models may run where: models with an open circuit, classes of servers, and whether any server could run a
-- model.
-- include: keys
-- include: call
-- include: pools
-- include: slots

-- Models that are kept back because their circuit is open: no ticket of them is found, and none wakes anybody. `kept`
-- holds, by model, until when (µs), then the attempt that tries; once that attempt has no lease any more and said
-- nothing, another may try. A model that is kept back has a record in `circuits`: in a pool without any this costs
-- nothing.

local BY = 'by:'  -- before an attempt's id

local function forget_kept(pool) Call.kept[pool] = nil end

-- The caller saves the pool: it counts the records. nil, or {strikes, struck, servers ',a,b,' that it failed on,
-- opens, tenants: failures by tenant, alone: the tenant that alone struck until it opened, or ''}.
local function read_circuit(pool, model)
  local packed = pool.failing > 0 and redis.call('HGET', Keys.circuits(pool.name), model)
  if not packed then return nil end
  local strikes, struck, servers, opens, tenants, alone = cmsgpack.unpack(packed)
  return { strikes = strikes, struck = struck, servers = servers, opens = opens, tenants = tenants or {}, alone = alone or '' }
end

-- The tenant has a job for the model: if its circuit is open by one other tenant alone, it is half open from now on.
local function offer_try(pool, model, tenant)
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

-- {any: whether one is kept, models: {model = 'kept' or 'half_open'}}
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

-- models, and the answer: ',a,b,'.
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

-- The attempt takes a ticket of this model: if its circuit is half open, it is the one that tries.
local function keep_others_back(pool, model, attempt)
  if Pools.load_pool(pool).failing == 0 or not read_kept(pool).models[model] then return end
  redis.call('HSET', Keys.kept(pool), model, BY .. attempt)
  forget_kept(pool)
end

-- Servers of a pool that run the same models form a class: the next ticket is looked for once per class, not per
-- server.

local function serves(models, model) return models:find(',' .. model .. ',', 1, true) ~= nil end

-- Those of the first that are among the second.
local function shared_models(some, models)
  local both = ','
  for model in some:gmatch('[^,]+') do
    if serves(models, model) then both = both .. model .. ',' end
  end
  return both
end

-- The pool's classes, most specialised first: {{class, models}, ...}; also models that nobody may run now.
local function all_classes(pool)
  if Call.class_lists[pool] then return Call.class_lists[pool] end
  local flat, classes = redis.call('HGETALL', Keys.classes(pool)), {}
  for i = 1, #flat, 2 do classes[#classes + 1] = { flat[i], flat[i + 1] } end
  if #classes > 1 then table.sort(classes, function(a, b) return a[1] < b[1] end) end
  Call.class_lists[pool] = classes
  return classes
end

-- The same, without models that are kept back.
local function read_classes(pool)
  local classes = {}
  for i, class in ipairs(all_classes(pool)) do classes[i] = { class[1], without_kept(pool, class[2]) } end
  return classes
end

-- Whether a server could run a model at all, now or once a slot of it is free. Servers that are off or drain are not in
-- `serving`, nor is one of a model that is paused.

local NOBODY = 0
local FAILING, SOMEBODY = 1, 2
local MOST_ASKED = 32

local function has_open_circuit(server) return server.opens > 0 and server.rests_until > Call.now end

-- FAILING: its circuit is open, or that of every server that has it (of very many: of some by chance).
local function able_to_run(pool_name, model)
  if read_kept(pool_name).models[model] == 'kept' then return FAILING end
  local serving = Keys.serving(pool_name, model)
  local one = redis.call('SRANDMEMBER', serving)
  if not one then return NOBODY end
  if not has_open_circuit(Slots.read_server(one)) then return SOMEBODY end
  for _, name in ipairs(redis.call('SRANDMEMBER', serving, MOST_ASKED)) do
    if not has_open_circuit(Slots.read_server(name)) then return SOMEBODY end
  end
  return FAILING
end

return {
  able_to_run = able_to_run, all_classes = all_classes, forget_kept = forget_kept,
  keep_others_back = keep_others_back, offer_try = offer_try, read_circuit = read_circuit,
  read_classes = read_classes, read_kept = read_kept, serves = serves, shared_models = shared_models,
  without_kept = without_kept, BY = BY, FAILING = FAILING, SOMEBODY = SOMEBODY,
}
