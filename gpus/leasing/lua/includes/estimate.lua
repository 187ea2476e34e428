-- What a job is expected to cost, in GPU-seconds: running means per model and tenant, and per model. Where one of the
-- tenant's runs goes on for longer than the mean, what it took so far stands there, negative, until the next end: the
-- long ones are the last to be heard of, and what follows them must not be given away too cheaply meanwhile.
-- include: keys

local NEWEST_COUNTS = 0.05  -- more lets a few short jobs make the next long ones cheap: shares swing

local function estimated_seconds(model, tenant)
  local means = redis.call('HMGET', Keys.estimates(), model .. ':' .. tenant, model)
  local own, common = tonumber(means[1]), tonumber(means[2])
  return own and math.abs(own) or common or 1
end

-- A run of so many seconds goes on.
local function learn_longer(model, tenant, seconds)
  local of_tenant = model .. ':' .. tenant
  local mean = tonumber(redis.call('HGET', Keys.estimates(), of_tenant))
  if not mean or math.abs(mean) < seconds then redis.call('HSET', Keys.estimates(), of_tenant, -seconds) end
end

local function learn_seconds(model, tenant, seconds)
  local of_tenant = model .. ':' .. tenant
  local means = redis.call('HMGET', Keys.estimates(), of_tenant, model)
  local tenants, models = tonumber(means[1]) or seconds, tonumber(means[2]) or seconds
  if tenants < 0 then tenants = math.max(-tenants, seconds) end
  redis.call('HSET', Keys.estimates(), of_tenant, tenants + NEWEST_COUNTS * (seconds - tenants),
    model, models + NEWEST_COUNTS * (seconds - models))
end
