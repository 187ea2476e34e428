-- How many wakes make sense. `pending` counts, per host, those that were sent and not used yet; the fill forgets
-- it, so that a lost wake costs one period.
-- include: keys
-- include: line
-- include: servers
local wakes = {}

wakes.HOSTS = 64  -- more hosts than this are woken by the fill, not by the push

function wakes.pending(pool, host) return tonumber(redis.call('HGET', key.pending(pool), host)) or 0 end

function wakes.add(pool, host, count) redis.call('HINCRBY', key.pending(pool), host, count) end

function wakes.use(pool, host)
  if wakes.pending(pool, host) > 0 then wakes.add(pool, host, -1) end
end

local function listed(pool, class, host)
  return tonumber(redis.call('ZSCORE', key.open(pool, class), host)) or 0
end

-- Slots of this host that a claim could fill now, and all that it could be given.
local function claimable(pool, host)
  local adoptable = listed(pool, 'adoptable', host)
  local useful, free = adoptable, adoptable
  for _, class in ipairs(servers.classes(pool)) do
    local count = listed(pool, class[1], host)
    if count > 0 then
      free = free + count
      useful = useful + math.min(count, line.waiting(pool, class[2]))
    end
  end
  return useful, free
end

-- For slots that just became free. changes: {{pool, host, count}, ...}; returns a flat array of the same kind.
function wakes.for_freed(changes)
  local totals, reply = {}, {}
  for _, change in ipairs(changes) do
    local of_pool = totals[change[1]] or {}
    totals[change[1]] = of_pool
    of_pool[change[2]] = (of_pool[change[2]] or 0) + change[3]
  end
  for pool, hosts in pairs(totals) do
    for host, freed in pairs(hosts) do
      local useful, free = claimable(pool, host)
      local count = math.min(freed, useful, free - wakes.pending(pool, host))
      if count > 0 then
        wakes.add(pool, host, count)
        reply[#reply + 1] = pool
        reply[#reply + 1] = host
        reply[#reply + 1] = count
      end
    end
  end
  return reply
end
