-- Computes how many wakes (Celery messages that tell a worker to claim) are useful after tickets were pushed or slots
-- became free.
-- include: keys
-- include: call
-- include: slots
-- include: classes

-- `pending` counts, per host, wakes that were sent and not used yet; fill.lua resets it, so that a lost wake delays a job
-- by one period.

local WAKE_HOSTS = 64  -- a push wakes at most so many hosts; the fill wakes the rest

local function pending_wakes(pool, host) return tonumber(redis.call('HGET', Keys.pending(pool), host)) or 0 end

local function add_pending(pool, host, count) redis.call('HINCRBY', Keys.pending(pool), host, count) end

-- A worker of the host claims: one pending wake is used.
local function use_wake(pool, host)
  redis.call('HSET', Keys.asked(pool), host, string.format('%.0f', Call.now))
  if pending_wakes(pool, host) > 0 then add_pending(pool, host, -1) end
end

local function listed(pool, class, host) return tonumber(redis.call('ZSCORE', Keys.open(pool, class), host)) or 0 end

-- The number of waiting tickets of these models (',a,b,'), over all bands.
local function waiting_for(pool_name, models)
  local total = 0
  for model in models:gmatch('[^,]+') do
    total = total + (tonumber(redis.call('HGET', Keys.depth(pool_name), model)) or 0)
  end
  return total
end

-- Slots of this host that have a ticket now, and all claimable slots of it.
local function claimable(pool, host)
  local adoptable = listed(pool, 'adoptable', host)
  local useful, free = adoptable, adoptable
  for _, class in ipairs(Classes.read_classes(pool)) do
    local count = listed(pool, class[1], host)
    if count > 0 then
      free = free + count
      useful = useful + math.min(count, waiting_for(pool, class[2]))
    end
  end
  return useful, free
end

-- Appends wakes to the reply and counts them as pending.
local function add_wakes(reply, pool, host, count)
  add_pending(pool, host, count)
  reply[#reply + 1] = pool
  reply[#reply + 1] = host
  reply[#reply + 1] = count
end

-- The wakes for slots that just became free. changes: {{pool, host, count}, ...}. Returns them flat.
local function wakes_for(changes)
  local totals, reply = {}, {}
  for _, change in ipairs(changes) do
    local of_pool = totals[change[1]] or {}
    totals[change[1]] = of_pool
    of_pool[change[2]] = (of_pool[change[2]] or 0) + change[3]
  end
  for pool, hosts in pairs(totals) do
    for host, freed in pairs(hosts) do
      local useful, free = claimable(pool, host)
      local count = math.min(freed, useful, free - pending_wakes(pool, host))
      if count > 0 then add_wakes(reply, pool, host, count) end
    end
  end
  return reply
end

-- Hosts with free slots of a class, cached for this call: {{host, count}, …}.
local function open_hosts(pool_name, class)
  local list = Keys.open(pool_name, class)
  if Call.open[list] then return Call.open[list] end
  local flat, hosts = redis.call('ZRANGE', list, 0, WAKE_HOSTS - 1, 'WITHSCORES'), {}
  for i = 1, #flat, 2 do hosts[#hosts + 1] = { flat[i], tonumber(flat[i + 1]) } end
  Call.open[list] = hosts
  return hosts
end

-- The wakes for new tickets. added: tickets by model. near: those that prefer a server, {{model, server}, …}, or nil: its host is
-- woken first. Per host: min(its free slots - pending wakes, new tickets). Returns them flat: pool, host, count, …
local function wakes_for_tickets(pool_name, classes, added, near)
  local spare = {}
  local function spare_slots(host)
    if spare[host] then return spare[host] end
    local count = -pending_wakes(pool_name, host)
    for _, class in ipairs(classes) do count = count + listed(pool_name, class[1], host) end
    spare[host] = count
    return count
  end
  local sent = {}
  for _, one in ipairs(near or {}) do
    local server = Slots.read_server(one[2])
    if server and server.pool == pool_name and Classes.serves(server.models, one[1]) and
      listed(pool_name, server.class, server.host) > 0 and spare_slots(server.host) > 0 then
      local host = server.host
      sent[host], spare[host] = (sent[host] or 0) + 1, spare[host] - 1
      added[one[1]] = added[one[1]] - 1
    end
  end
  for model, wanted in pairs(added) do
    for _, class in ipairs(classes) do
      if wanted > 0 and Classes.serves(class[2], model) then
        for _, host in ipairs(open_hosts(pool_name, class[1])) do
          local count = math.max(0, math.min(wanted, host[2], spare_slots(host[1])))
          sent[host[1]] = (sent[host[1]] or 0) + count
          spare[host[1]], host[2], wanted = spare[host[1]] - count, host[2] - count, wanted - count
        end
      end
    end
  end
  local reply = {}
  for host, count in pairs(sent) do
    if count > 0 then add_wakes(reply, pool_name, host, count) end
  end
  return reply
end

return {
  add_wakes = add_wakes, open_hosts = open_hosts, use_wake = use_wake, waiting_for = waiting_for,
  wakes_for = wakes_for, wakes_for_tickets = wakes_for_tickets, WAKE_HOSTS = WAKE_HOSTS,
}
