-- Why: shows the slots of the named servers, for operators and for the sync of locks.
-- Keys: expiry, generation, rebuild, server, slot, ticking
-- Args:
--   servers: texts, a few: each costs a read per slot
-- Returns: per slot, server by server: {slot, pool, state, resting 0|1, warm model, job, attempt, epoch, model, seconds
--   held, seconds until expiry, the server's circuit, attempt of the follower}; '' for a missing value; circuit: '' while
--   closed, else open or half_open
-- include: keys
-- include: call
-- include: index
-- include: slots
-- include: leases
if not Index.is_open() then return Index.refuse() end
local floor_us, had_time_us = Index.read_floor()
local clock_us, views = Call.redis_clock(Call.clock_us), {}

local function view_slots(server)
  local is_resting = server.rests_until > Call.now and 1 or 0
  local circuit = server.opens == 0 and '' or is_resting == 1 and 'open' or 'half_open'
  Slots.each_slot(server, function(slot)
    local follower = Leases.read_follower(slot)
    local held, expires = '0', ''
    if slot.leased_us then held = tostring((Call.now - slot.leased_us) / 1000000) end
    if slot.state == 'leased' or slot.state == 'settling' then
      local at = tonumber(redis.call('ZSCORE', Keys.expiry(), slot.attempt))
      expires = tostring(Index.runs_out_in(at, clock_us, floor_us, had_time_us) / 1000000)
    end
    views[#views + 1] = { slot.name, slot.home, slot.state, is_resting, slot.warm or '', slot.job or '',
      slot.attempt or '', slot.epoch or 0, slot.model or '', held, expires, circuit,
      follower and follower.attempt or '' }
  end)
end

for _, name in ipairs(args.servers) do
  local server = Slots.read_server(name)
  if server then view_slots(server) end
end
return views
