-- Why: adds a server's slots, delists them, or changes their models, at once. Running leases continue.
-- Keys: broad, class_servers, class_turn, classes, depth, free, generation, kept, leases, open, pending, pool, pools,
--   rebuild, resting, server, servers, serving, slot, states, turn, warm
-- Args:
--   server, pool: text
--   slots: number
--   desired: text, on, drain or off
--   host: text, '' unless pinned
--   models: text, ',a,b,', sorted
--   registered_us: number, when its row was made; 0: unknown
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
  and old.desired == desired and old.models == models and args.registered_us <= (old.registered_us or 0) then return {} end

-- A server that is registered again starts fresh: failures, rest and quarantines of the old registration do not count,
-- and a job that still runs there is no trial of its circuit. It may have been removed while Redis was away.
local is_other = old and not old.gone and old.registered_us and args.registered_us > old.registered_us
local past = old and not old.gone and not is_other and old or {}
local were_free = 0
if old then
  Slots.each_slot(old, function(slot)
    Availability.hide_slot(slot, old)
    if slot.state == 'free' then
      were_free = were_free + 1
      Slots.set_state(slot, 'off', slot.since_us)
    end
    if is_other and (slot.state == 'off' or slot.state == 'quarantined') then Slots.delete_slot(slot) end
  end)
  Enlist.withdraw_server(old)
end
local server = {
  name = name, pool = pool, host = host, models = models, class = Enlist.class_of(models), slots = count,
  top = math.max(count, old and old.top or 0), desired = desired, rests_until = past.rests_until or 0,
  gone = false, strikes = past.strikes or 0, failed_job = past.failed_job or '', opens = past.opens or 0, probe = past.probe, tenants = past.tenants,
  registered_us = math.max(args.registered_us, old and old.registered_us or 0),
}
redis.call('SADD', Keys.pools(), pool)
Slots.save_server(server)
Enlist.enlist_server(server)
if old and not old.gone then Enlist.leave_class(old.pool, old.class) end
if server.opens > 0 then  -- without this entry `end_rests` would never choose the slot for the trial
  redis.call('ZADD', Keys.resting(), math.max(server.rests_until, Call.now), server.name)
end

for index = 0, server.top - 1 do
  local slot = Slots.read_slot(name .. '/' .. index)
  if not slot then
    if index < count then Slots.set_state(Slots.new_slot(name .. '/' .. index, pool), 'off') end
  else
    if slot.home ~= pool then
      redis.call('HINCRBY', Keys.states(slot.home), slot.state, -1)
      redis.call('HINCRBY', Keys.states(pool), slot.state, 1)
      slot.home = pool
      Slots.save_slot(slot)
    end
    Availability.show_slot(slot, server)
  end
end
local freed = Availability.arrange_slots(server) - were_free
return whole and freed > 0 and Wakes.wakes_for({ { pool, host, freed } }) or {}
