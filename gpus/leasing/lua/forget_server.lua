-- Why: the server is not registered any more. Leases that run there go on until they end; nothing new begins.
-- Keys: KEYS[1] prefix
-- Args:
--   server: text
-- Returns: 1
-- include: gate
-- include: enlist
-- include: idle
-- include: rest
if not is_open() then return refuse() end
redis.call('HDEL', Keys.beats(), args.server)
redis.call('DEL', Keys.telemetry(args.server))
local server = read_server(args.server)
if not server or server.gone then return 1 end
each_slot(server, function(slot)
  if slot.state == 'free' or slot.state == 'off' or slot.state == 'quarantined' then
    hide_slot(slot, server)
    delete_slot(slot)
  end
end)
withdraw_server(server)
leave_class(server.pool, server.class)
server.gone, server.desired, server.slots = true, 'off', 0
save_server(server)
bury_server(server)
return 1
