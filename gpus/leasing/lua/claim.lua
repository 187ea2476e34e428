-- Why: a slot and the next ticket, or neither; waiting for capacity can thus never cost a retry. Leases that
-- wait to be adopted come first: their GPU works already. Asked again with the same attempt it answers the same.
-- Keys: KEYS[1] prefix
-- Args: clock, pool, worker, attempt, host ('' unless pinned), lease µs, head start µs per priority level
-- Returns: the lease as an array (leases.reply), or nil
-- include: gate
-- include: give
-- include: wakes
local pool, worker, attempt, host = ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local lease_us, head_start_us = tonumber(ARGV[6]), tonumber(ARGV[7])

local LOOK = 8           -- free slots looked at for one on another server than the ticket avoids
local RESTS_AT_ONCE = 8

if not gate.is_whole() then return gate.refuse() end
local known = leases.find(attempt)
if known then
  local ours = known.state == 'leased' and known.worker == worker
  return ours and leases.reply(known, known.asked == attempt) or nil
end

wakes.use(pool, host)  -- before looking: a ticket pushed from now on sends its own
slots.end_rests(RESTS_AT_ONCE)

local waiting = redis.call('ZRANGE', key.free(pool, 'adoptable', host), 0, 0)[1]
if waiting then
  local slot = slots.read(waiting)
  slots.hide(slot, servers.read((servers.of_slot(waiting))))
  slots.set_state(slot, 'leased')
  leases.pass_to(slot, worker, slot.epoch, attempt)
  redis.call('ZADD', key.expiry, now + lease_us, slot.attempt)
  servers.touch((servers.of_slot(waiting)))
  return leases.reply(slot, true)
end

-- The classes with a free slot for this host, and the best ticket any of them could take.
local view, open, best = pick.view(pool), {}, nil
if #view.bands == 0 then return nil end
for _, class in ipairs(servers.classes(pool)) do
  if redis.call('EXISTS', key.free(pool, class[1], host)) == 1 then
    open[#open + 1] = class
    local ticket = pick.best(view, class[2])
    if ticket and (not best or pick.goes_before(ticket, best)) then best = ticket end
  end
end
if not best then return nil end

local avoided = pick.avoided(view, best)
local function first_elsewhere(list)
  for _, name in ipairs(redis.call('ZRANGE', list, 0, LOOK - 1)) do
    local server = servers.of_slot(name)
    if server ~= avoided then return name, server end
  end
  return nil
end

-- A slot that is warm for the ticket, else the one that is free the longest, of the most specialised class.
local fallback
for _, class in ipairs(open) do
  if pick.serves(class[2], best.model) then
    fallback = fallback or class
    local name, server = first_elsewhere(key.warm(pool, class[1], best.model, host))
    if name then return give(slots.read(name), servers.read(server), view, best, attempt, worker, lease_us) end
  end
end
for _, class in ipairs(open) do
  if pick.serves(class[2], best.model) then
    local name, server = first_elsewhere(key.free(pool, class[1], host))
    if name then
      local slot = slots.read(name)
      local ticket = pick.prefer_warm(view, best, slot.warm, class[2], server, head_start_us)
      return give(slot, servers.read(server), view, ticket, attempt, worker, lease_us)
    end
  end
end

-- Only the server it avoids is free: that slot goes to the next one.
local name = redis.call('ZRANGE', key.free(pool, fallback[1], host), 0, 0)[1]
local ticket = pick.best(view, fallback[2], (servers.of_slot(name)))
if not ticket then return nil end
return give(slots.read(name), servers.read((servers.of_slot(name))), view, ticket, attempt, worker, lease_us)
