-- Servers that said they are busy rest for a while: their free slots leave the lists meanwhile.
-- include: keys
-- include: time
-- include: lists

local function rest_server(server, until_us)
  each_slot(server, function(slot)
    if slot.state == 'free' then hide_slot(slot, server) end
  end)
  server.rests_until = math.max(server.rests_until, until_us)
  redis.call('ZADD', key('resting'), server.rests_until, server.name)
  save_server(server)
end

-- Lists the free slots of servers whose rest is over; a few servers each time keep a claim short.
local function end_rests(limit)
  for _, name in ipairs(redis.call('ZRANGEBYSCORE', key('resting'), '-inf', now, 'LIMIT', 0, limit)) do
    redis.call('ZREM', key('resting'), name)
    local server = read_server(name)
    if not server.gone then
      each_slot(server, function(slot)
        if slot.state == 'free' then show_slot(slot, server) end
      end)
    end
  end
end
