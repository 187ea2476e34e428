-- What a job is expected to cost, in GPU-seconds: running means per model and tenant, and per model.
-- include: keys
local estimate = {}

local NEWEST_COUNTS = 0.2

function estimate.read(model, tenant)
  local means = redis.call('HMGET', key.estimates, model .. ':' .. tenant, model)
  return tonumber(means[1]) or tonumber(means[2]) or 1
end

function estimate.learn(model, tenant, seconds)
  local of_tenant = model .. ':' .. tenant
  local means = redis.call('HMGET', key.estimates, of_tenant, model)
  for i = 1, 2 do
    local mean = tonumber(means[i]) or seconds
    means[i] = mean + NEWEST_COUNTS * (seconds - mean)
  end
  redis.call('HSET', key.estimates, of_tenant, means[1], model, means[2])
end
