-- Why: operators and lock sync look at one server's slots.
-- Keys: KEYS[1] prefix
-- Args: clock, server
-- Returns: per slot: {slot, pool, state, resting 0|1, warm model, job, attempt, epoch, model, held s, expires in s};
--   '' where there is none
-- include: gate
-- include: leases
if not gate.is_open() then return gate.refuse() end
local server, views = servers.read(ARGV[2]), {}
if not server then return views end
local rests = tonumber(redis.call('ZSCORE', key.resting, server.name))
local resting = rests and rests > now and 1 or 0
slots.each_of(server, function(slot)
  local held, expires = '0', ''
  if slot.leased_us > 0 then held = tostring((now - slot.leased_us) / 1000000) end
  if slot.state == 'leased' or slot.state == 'settling' then
    local at = tonumber(redis.call('ZSCORE', key.expiry, slot.attempt)) or now
    expires = tostring((math.max(at, leases.floor()) - now) / 1000000)
  end
  views[#views + 1] = { slot.name, slot.home, slot.state, resting, slot.warm or '', slot.job or '',
    slot.attempt or '', slot.epoch, slot.model or '', held, expires }
end)
return views
