-- Why: the sweep's verdict on an expired lease or end, if it still is what the sweep saw.
-- Keys: KEYS[1] prefix
-- Args: clock, slot, job, attempt, epoch, verdict (adoptable, quarantined, free)
-- Returns: 1 if the verdict was carried out, else 0
-- include: gate
-- include: leases
local name, job, attempt, epoch, verdict = ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5]), ARGV[6]

if not gate.is_whole() then return gate.refuse() end
if not leases.is_expired(attempt) then return 0 end

local function make_adoptable(slot)
  redis.call('ZREM', key.expiry, attempt)
  redis.call('HSET', key.slot(name), 'freed_us', now)
  slot.freed_us = now
  slots.set_state(slot, 'adoptable')
  slots.show(slot, servers.read((servers.of_slot(name))))
  servers.touch((servers.of_slot(name)))
  return 1
end

local slot = leases.held_under(name, job, attempt, epoch)
if slot then
  if verdict == 'adoptable' then return make_adoptable(slot) end
  leases.finish(slot)
  leases.forget_job(job, attempt)
  if verdict == 'free' then slots.idle(slot) else slots.set_state(slot, 'quarantined') end
  return 1
end

local end_of = leases.read_settling(attempt)
if not end_of or end_of.slot ~= name or end_of.job ~= job or end_of.epoch ~= epoch then return 0 end
if verdict == 'adoptable' then
  -- the process died with the result: the run is asked again, if its slot was not handed on meanwhile
  slot = slots.read(name)
  if not slot or slot.state ~= 'settling' or slot.attempt ~= attempt then return 0 end
  redis.call('DEL', key.settling(attempt))
  redis.call('HSET', key.leases, attempt, name)
  return make_adoptable(slot)
end
slot = leases.forget_settling(attempt, end_of)
if slot and verdict == 'free' then slots.idle(slot) elseif slot then slots.set_state(slot, 'quarantined') end
return 1
