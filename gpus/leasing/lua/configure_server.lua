-- Why: a server's slots appear, leave the lists, or change their models at once; leases that run go on.
-- Keys: KEYS[1] prefix
-- Args: clock, server, pool, slots, desired state, host or '', models as ',a,b,' (sorted)
-- Returns: wakes for slots that became free, flat: pool, host, count, …
-- include: gate
-- include: slots
-- include: wakes
local name, pool, count, desired, host, models = ARGV[2], ARGV[3], tonumber(ARGV[4]), ARGV[5], ARGV[6], ARGV[7]

local whole = gate.is_whole()
if not whole and not gate.is_filling() then return gate.refuse() end
local old = servers.read(name)
if old and not old.gone and old.pool == pool and old.host == host and old.slots == count
  and old.desired == desired and servers.models(old) == models then return {} end

local seen = {}
if old then
  slots.each_of(old, function(slot, index)
    slots.hide(slot, old)
    seen[index] = slot
  end)
  servers.withdraw(old)
end
servers.enlist(name, pool, host, count, math.max(count, old and old.top or 0), desired, models)

local server, freed = servers.read(name), 0
for index = 0, server.top - 1 do
  local slot = seen[index]
  if slot or index < count then
    slot = slot or slots.create(name .. '/' .. index, pool)
    local was_open = slot.state == 'free'
    local state = slot.state or 'off'
    if state == 'free' or state == 'off' then
      state = slots.is_usable(server, index) and 'free' or 'off'
    end
    if slot.state and slot.home ~= pool then
      redis.call('HINCRBY', key.states(slot.home), slot.state, -1)
      slot.state = nil
    end
    slot.home = pool
    if slot.state ~= state then slots.set_state(slot, state) end
    if slots.show(slot, server) and not was_open then freed = freed + 1 end
  end
end
return whole and freed > 0 and wakes.for_freed({ { pool, host, freed } }) or {}
