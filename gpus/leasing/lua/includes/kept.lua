-- Models that are kept back because their circuit is open: no ticket of them is found, and none wakes anybody. `kept`
-- holds, by model, until when (µs), then the attempt that tries; once that attempt has no lease any more and said
-- nothing, another may try. A model that is kept back has a record in `circuits`: in a pool without any this costs nothing.
-- include: pools

local BY = 'by:'  -- before an attempt's id

local function forget_kept(pool) kept[pool] = nil end

-- The caller saves the pool: it counts the records.
-- nil, or {strikes, struck, servers ',a,b,' that it failed on, opens, tenants: failures by tenant, alone: the tenant that
-- alone struck until it opened, or ''}.
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
  if not until_us or until_us <= now then return end
  local circuit = read_circuit(pool, model)
  if circuit.alone == '' or circuit.alone == tenant then return end
  redis.call('HSET', Keys.kept(pool.name), model, string.format('%.0f', now))
  forget_kept(pool.name)
end

local function state_of_kept(value)
  local until_us = tonumber(value)
  if until_us then return until_us > now and 'kept' or 'half_open' end
  return redis.call('HEXISTS', Keys.leases(), value:sub(#BY + 1)) == 1 and 'kept' or 'half_open'
end

-- {any: whether one is kept, models: {model = 'kept' or 'half_open'}}
local function read_kept(pool)
  if kept[pool] then return kept[pool] end
  local found = { any = false, models = {} }
  local flat = load_pool(pool).failing > 0 and redis.call('HGETALL', Keys.kept(pool)) or {}
  for i = 1, #flat, 2 do
    found.models[flat[i]] = state_of_kept(flat[i + 1])
    found.any = found.any or found.models[flat[i]] == 'kept'
  end
  kept[pool] = found
  return found
end

-- models, and the answer: ',a,b,'.
local function without_kept(pool, models)
  if load_pool(pool).failing == 0 then return models end
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
  if load_pool(pool).failing == 0 or not read_kept(pool).models[model] then return end
  redis.call('HSET', Keys.kept(pool), model, BY .. attempt)
  forget_kept(pool)
end
