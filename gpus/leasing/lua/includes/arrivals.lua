-- Tickets that came into the line: the free slots they could take, and the wakes for that.
-- include: pick
-- include: wakes

-- Hosts with free slots of a class, looked up once: {{host, count}, …}.
local function open_hosts(pool_name, class)
  local list = Keys.open(pool_name, class)
  if open[list] then return open[list] end
  local flat, hosts = redis.call('ZRANGE', list, 0, WAKE_HOSTS - 1, 'WITHSCORES'), {}
  for i = 1, #flat, 2 do hosts[#hosts + 1] = { flat[i], tonumber(flat[i + 1]) } end
  open[list] = hosts
  return hosts
end

-- added: tickets by model. Per host: min(its free slots - wakes under way, tickets that came). Flat: pool, host,
-- count, …
local function wakes_for_tickets(pool_name, classes, added)
  local spare = {}
  local function spare_slots(host)
    if spare[host] then return spare[host] end
    local count = -pending_wakes(pool_name, host)
    for _, class in ipairs(classes) do count = count + listed(pool_name, class[1], host) end
    spare[host] = count
    return count
  end
  local sent = {}
  for model, wanted in pairs(added) do
    for _, class in ipairs(classes) do
      if wanted > 0 and serves(class[2], model) then
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
