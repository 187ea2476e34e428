-- Why: operators and lock sync look at one server's slots.
-- Keys: KEYS[1] prefix
-- Args: clock, server
-- Returns: per slot: {slot, pool, state, resting 0|1, warm model, job, attempt, epoch, model, held s, expires in s};
--   '' where there is none
-- include: gate
-- include: rest
-- include: floor
if not is_open() then return refuse() end
local server, views = read_server(ARGV[2]), {}
if not server then return views end
local floor_us, is_resting = expiry_floor(), server.rests_until > now and 1 or 0
each_slot(server, function(slot)
  local held, expires = '0', ''
  if slot.leased_us then held = tostring((now - slot.leased_us) / 1000000) end
  if slot.state == 'leased' or slot.state == 'settling' then
    local at = tonumber(redis.call('ZSCORE', key('expiry'), slot.attempt))
    expires = tostring((math.max(at, floor_us) - now) / 1000000)
  end
  views[#views + 1] = { slot.name, slot.home, slot.state, is_resting, slot.warm or '', slot.job or '',
    slot.attempt or '', slot.epoch or 0, slot.model or '', held, expires }
end)
return views
