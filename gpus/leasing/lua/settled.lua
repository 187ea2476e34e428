-- Why: ends that are committed need no memory any more; a slot that was only waiting for that is free again.
-- Keys: KEYS[1] prefix
-- Args: clock, then per end: slot, job, attempt, epoch
-- Returns: wakes, flat: pool, host, count, …
-- include: gate
-- include: ends
-- include: idle
-- include: arrivals
-- include: parked
local whole = is_whole()
if not whole and not is_filling() then return refuse() end
local freed, tenants = {}, {}
for i = 2, #ARGV, 4 do
  local attempt = ARGV[i + 2]
  local found = end_under(ARGV[i], ARGV[i + 1], attempt, tonumber(ARGV[i + 3]))
  local slot = found and forget_end(attempt, found)
  if found then tenants[found.tenant] = found.pool end
  if slot then
    local is_claimable, server = idle_slot(slot)
    if is_claimable then freed[#freed + 1] = { server.pool, server.host, 1 } end
  end
end
if not whole then return {} end

-- A tenant that ran as many jobs as it may can start one now, maybe in another pool: the slot there was free already.
local reply = wakes_for(freed)
for tenant, home in pairs(tenants) do
  if rules_of(tenant).cap and not is_full(tenant) then
    for _, name in ipairs(redis.call('SMEMBERS', key('waits', tenant))) do
      local pool, first = load_pool(name), {}
      if name ~= home and not is_parked(pool, tenant) then
        each_queue(pool, tenant, function(_, models) first[models[1]:sub(2)] = 1 end)
        for _, value in ipairs(wakes_for_tickets(name, read_classes(name), first)) do reply[#reply + 1] = value end
      end
    end
  end
end
return reply
