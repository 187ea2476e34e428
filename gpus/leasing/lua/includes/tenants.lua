-- What the operator decided about a tenant: its weight, the highest band it may use, how many of its jobs may run at
-- once. A tenant that nobody told of has the defaults of a new one.
-- include: keys

local DEFAULT_BAND = 1  -- normal

-- {weight, band (0 to 2), cap (nil: none)}
local function rules_of(tenant)
  local found = rules[tenant]
  if found then return found end
  found = { weight = 1, band = DEFAULT_BAND }
  local packed = redis.call('HGET', key('tenants'), tenant)
  if packed then found.weight, found.band, found.cap = cmsgpack.unpack(packed) end
  rules[tenant] = found
  return found
end

local function save_rules(tenant, found)
  rules[tenant] = found
  redis.call('HSET', key('tenants'), tenant, cmsgpack.pack(found.weight, found.band, found.cap))
end

-- Whether as many of its leases exist, in all pools of the fleet, as there may be.
local function is_full(tenant)
  local cap = rules_of(tenant).cap
  return cap ~= nil and redis.call('SCARD', key('running', tenant)) >= cap
end
