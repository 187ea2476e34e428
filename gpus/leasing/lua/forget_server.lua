-- Why: the server is not registered any more. Leases that run there go on until they end; nothing new begins.
-- Keys: KEYS[1] prefix
-- Args: clock, server
-- Returns: 1
-- include: gate
-- include: slots
local name = ARGV[2]

if not gate.is_open() then return gate.refuse() end
local server = servers.read(name)
if not server or server.gone then return 1 end
slots.each_of(server, function(slot)
  if slot.state == 'free' or slot.state == 'off' or slot.state == 'quarantined' then
    slots.hide(slot, server)
    slots.delete(slot)
  end
end)
servers.withdraw(server)
redis.call('HSET', key.server(name), 'gone', '1', 'desired', 'off', 'slots', 0)
slots.bury(server)
return 1
