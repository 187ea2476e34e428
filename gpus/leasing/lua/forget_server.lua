-- Why: removes a server that is no longer registered. Its running leases continue until they end; no new one begins.
-- Keys: beats, class_servers, class_turn, classes, free, generation, open, pool, rebuild, resting, server, servers,
--   serving, slot, states, summaries, telemetry, warm
-- Args:
--   server: text
-- Returns: 1
-- include: keys
-- include: index
-- include: slots
-- include: availability
-- include: enlist
if not Index.is_open() then return Index.refuse() end
redis.call('HDEL', Keys.beats(), args.server)
redis.call('DEL', Keys.telemetry(args.server), Keys.summaries(args.server))
local server = Slots.read_server(args.server)
if not server or server.gone then return 1 end
Slots.each_slot(server, function(slot)
  if slot.state == 'free' or slot.state == 'off' or slot.state == 'quarantined' then
    Availability.hide_slot(slot, server)
    Slots.delete_slot(slot)
  end
end)
Enlist.withdraw_server(server)
Enlist.leave_class(server.pool, server.class)
server.gone, server.desired, server.slots = true, 'off', 0
Slots.save_server(server)
Availability.delete_gone_server(server)
return 1
