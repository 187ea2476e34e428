-- What a job is expected to cost, in GPU-seconds: running means per model and tenant, and per model.
-- include: keys

local NEWEST_COUNTS = 0.2

local function estimated_seconds(model, tenant)
  local means = redis.call('HMGET', key('estimates'), model .. ':' .. tenant, model)
  return tonumber(means[1]) or tonumber(means[2]) or 1
end

local function learn_seconds(model, tenant, seconds)
  local of_tenant = model .. ':' .. tenant
  local means = redis.call('HMGET', key('estimates'), of_tenant, model)
  local tenants, models = tonumber(means[1]) or seconds, tonumber(means[2]) or seconds
  redis.call('HSET', key('estimates'), of_tenant, tenants + NEWEST_COUNTS * (seconds - tenants),
    model, models + NEWEST_COUNTS * (seconds - models))
end
