-- Why: the operator's rules of tenants, live: weight, highest band, how many jobs may run at once. Who is not named
--   keeps what he has. Tickets that wait stand by the new rules at once, and none of them is touched for that.
-- Keys: KEYS[1] prefix
-- Args: clock, then per tenant: name, weight, highest band (0 to 2), most running or ''
-- Returns: wakes for tickets that came back, flat: pool, host, count, …
-- include: gate
-- include: caps
-- include: grants
-- include: arrivals
local FIELDS = 4

local whole = is_whole()
if not whole and not is_filling() then return refuse() end
local back, limited = {}, {}
for i = 2, #ARGV, FIELDS do
  if ARGV[i + 3] ~= '' and not rules_of(ARGV[i]).cap then limited[ARGV[i]] = true end
end
find_running(limited)
for i = 2, #ARGV, FIELDS do
  local tenant, before = ARGV[i], rules_of(ARGV[i])
  local after = { weight = tonumber(ARGV[i + 1]), band = tonumber(ARGV[i + 2]), cap = tonumber(ARGV[i + 3]) }
  save_rules(tenant, after)
  if after.band ~= before.band then
    for _, name in ipairs(redis.call('SMEMBERS', Keys.waits(tenant))) do
      local pool = load_pool(name)
      regrant(pool, tenant, before.band)
      save_pool(pool)
    end
  end
  if after.cap ~= before.cap then
    if not after.cap then redis.call('DEL', Keys.running(tenant)) end
    heed_cap(tenant, back)
  end
end
local reply = {}
if not whole then return reply end
for name, tickets in pairs(back) do
  for _, value in ipairs(wakes_for_tickets(name, read_classes(name), tickets)) do reply[#reply + 1] = value end
end
return reply
