-- GPU servers as the line sees them, each one packed value.
-- include: keys

local function split_slot(slot)
  local server, index = slot:match('^(.*)/(%d+)$')
  return server, tonumber(index)
end

-- nil if unknown. models: ',a,b,', sorted; slots: how many may be used; top: one above its highest slot; rests_until:
-- µs. gone: forgotten or never configured, kept while something still holds one of its slots. Of its circuit
-- (circuit.lua): strikes: failures in a row; struck: the job of the last one; opens: how often it opened in a row, 0 while
-- it is closed; probe: the slot that tries, once it is half open; tenants: failures by tenant, of those that an input
-- may have caused, or nil.
local function read_server(name)
  local packed = redis.call('GET', Keys.server(name))
  if not packed then return nil end
  local pool, host, models, class, slots, top, desired, rests_until, gone, strikes, struck, opens, probe, tenants =
    cmsgpack.unpack(packed)
  return {
    name = name, pool = pool, host = host, models = models, class = class, slots = slots, top = top,
    desired = desired, rests_until = rests_until, gone = gone, strikes = strikes or 0, struck = struck or '',
    opens = opens or 0, probe = probe, tenants = tenants,
  }
end

local function save_server(server)
  redis.call('SADD', Keys.servers(), server.name)
  redis.call('SET', Keys.server(server.name), cmsgpack.pack(server.pool, server.host, server.models, server.class,
    server.slots, server.top, server.desired, server.rests_until, server.gone, server.strikes, server.struck,
    server.opens, server.probe, server.tenants))
end
