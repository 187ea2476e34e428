-- Why: adds a server's slots, takes them out of the lists, or changes their models at once; leases that run go on.
-- Keys: broad, class_servers, class_turn, classes, depth, free, generation, kept, leases, open, pending, pool, pools,
--   rebuild, resting, server, servers, serving, slot, states, turn, warm
-- Args:
--   server, pool: text
--   slots: number
--   desired: text, on, drain or off
--   host: text, '' unless pinned
--   models: text, ',a,b,', sorted
-- Returns: wakes for slots that became free, flat: pool, host, count, …
-- include: keys
-- include: call
-- include: index
-- include: slots
-- include: availability
-- include: wakes
-- include: enlist
local name, pool, count, desired, host, models = args.server, args.pool, args.slots, args.desired, args.host, args.models

local whole = Index.is_whole()
if not whole and not Index.is_filling() then return Index.refuse() end
local old = Slots.read_server(name)
if old and not old.gone and old.pool == pool and old.host == host and old.slots == count
  and old.desired == desired and old.models == models then return {} end

-- A server that is registered again is a new one: what its old life failed at, and that it was busy, says nothing of
-- it, and what still runs there from before tries nothing.
local past = old and not old.gone and old or {}
local were_free = 0
if old then
  Slots.each_slot(old, function(slot)
    Availability.hide_slot(slot, old)
    if slot.state == 'free' then
      were_free = were_free + 1
      Slots.set_state(slot, 'off', slot.since_us)
    end
  end)
  Enlist.withdraw_server(old)
end
local server = {
  name = name, pool = pool, host = host, models = models, class = Enlist.class_of(models), slots = count,
  top = math.max(count, old and old.top or 0), desired = desired, rests_until = past.rests_until or 0,
  gone = false, strikes = past.strikes or 0, struck = past.struck or '', opens = past.opens or 0, probe = past.probe, tenants = past.tenants,
}
redis.call('SADD', Keys.pools(), pool)
Slots.save_server(server)
Enlist.enlist_server(server)
if old and not old.gone then Enlist.leave_class(old.pool, old.class) end
if server.opens > 0 then  -- whatever became of its entry: without one nobody would look for who tries
  redis.call('ZADD', Keys.resting(), math.max(server.rests_until, Call.now), server.name)
end

for index = 0, server.top - 1 do
  local slot = Slots.read_slot(name .. '/' .. index)
  if not slot then
    if index < count then Slots.set_state(Slots.new_slot(name .. '/' .. index, pool), 'off') end
  else
    if slot.home ~= pool then
      redis.call('HINCRBY', Keys.states(slot.home), slot.state, -1)  -- counted there until now
      redis.call('HINCRBY', Keys.states(pool), slot.state, 1)
      slot.home = pool
      Slots.save_slot(slot)
    end
    Availability.show_slot(slot, server)
  end
end
local freed = Availability.arrange_slots(server) - were_free
return whole and freed > 0 and Wakes.wakes_for({ { pool, host, freed } }) or {}
