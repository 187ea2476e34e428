-- Why: a server's slots appear, leave the lists, or change their models at once; leases that run go on.
-- Keys: KEYS[1] prefix
-- Args: clock, server, pool, slots, desired state, host or '', models as ',a,b,' (sorted)
-- Returns: wakes for slots that became free, flat: pool, host, count, …
-- include: gate
-- include: rest
-- include: wakes
local name, pool, count, desired, host, models = ARGV[2], ARGV[3], tonumber(ARGV[4]), ARGV[5], ARGV[6], ARGV[7]

local whole = is_whole()
if not whole and not is_filling() then return refuse() end
local old = read_server(name)
if old and not old.gone and old.pool == pool and old.host == host and old.slots == count
  and old.desired == desired and old.models == models then return {} end

local seen = {}
if old then
  each_slot(old, function(slot, index)
    hide_slot(slot, old)
    seen[index] = slot
  end)
  withdraw_server(old)
end
local server = {
  name = name, pool = pool, host = host, models = models, class = class_of(models), slots = count,
  top = math.max(count, old and old.top or 0), desired = desired, rests_until = old and old.rests_until or 0,
  gone = false,
}
redis.call('SADD', key('pools'), pool)
save_server(server)
enlist_server(server)

local freed = 0
for index = 0, server.top - 1 do
  local slot = seen[index]
  if slot or index < count then
    slot = slot or new_slot(name .. '/' .. index, pool)
    local was_free, state = slot.state == 'free', slot.state or 'off'
    if state == 'free' or state == 'off' then state = is_usable(server, index) and 'free' or 'off' end
    if slot.state and slot.home ~= pool then  -- counted there until now
      redis.call('HINCRBY', key('states', slot.home), slot.state, -1)
      slot.state = nil
    end
    slot.home = pool
    set_state(slot, state, slot.since_us)
    if show_slot(slot, server) and not was_free then freed = freed + 1 end
  end
end
return whole and freed > 0 and wakes_for({ { pool, host, freed } }) or {}
