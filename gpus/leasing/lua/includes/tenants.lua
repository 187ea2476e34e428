-- What the operator decided about a tenant: its weight, the highest band it may use, how many of its jobs may run at
-- once. A tenant that nobody told of has the defaults of a new one.
-- include: keys

local DEFAULT_BAND = 1  -- normal

-- {weight, band (0 to 2), cap (nil: none)}
local function keep_rules(tenant, packed)
  local found = { weight = 1, band = DEFAULT_BAND }
  if packed then found.weight, found.band, found.cap = cmsgpack.unpack(packed) end
  rules[tenant] = found
  return found
end

local function rules_of(tenant) return rules[tenant] or keep_rules(tenant, redis.call('HGET', Keys.tenants(), tenant)) end

-- Reads those of several at once, for whoever asks next. tenants: {{name}, …}.
local function read_rules(tenants)
  local names = {}
  for _, one in ipairs(tenants) do
    if not rules[one.name] then names[#names + 1] = one.name end
  end
  if not names[1] then return end
  for i, packed in ipairs(redis.call('HMGET', Keys.tenants(), unpack(names))) do keep_rules(names[i], packed) end
end

local function save_rules(tenant, found)
  rules[tenant] = found
  redis.call('HSET', Keys.tenants(), tenant, cmsgpack.pack(found.weight, found.band, found.cap))
end

-- Whether as many of its leases exist, in all pools of the fleet, as there may be.
local function is_full(tenant)
  local cap = rules_of(tenant).cap
  return cap ~= nil and redis.call('SCARD', Keys.running(tenant)) >= cap
end
