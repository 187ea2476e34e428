-- Why: ends a lease, corrects its tenant's charge and, if asked, gives the slot to the next ticket in the same
-- step, so that a slot never stands idle for a round trip. Sent twice it answers the same.
-- Keys: KEYS[1] prefix
-- Args: clock, slot, job, attempt, epoch, mode, worker, real GPU-seconds or '', next attempt or '',
--   rest µs or '', lease µs, head start µs
-- Returns: the next lease as an array (leases.reply), or nil
-- include: gate
-- include: give
local name, job, attempt, epoch, mode, worker = ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5]), ARGV[6], ARGV[7]
local seconds, next_attempt, rest_us = tonumber(ARGV[8]), ARGV[9], tonumber(ARGV[10])
local lease_us, head_start_us = tonumber(ARGV[11]), tonumber(ARGV[12])

local whole = gate.is_whole()
if not whole and not gate.is_filling() then return gate.refuse() end
local slot = leases.held_under(name, job, attempt, epoch)
if not slot or (slot.worker ~= worker and slot.worker ~= '') then
  local given = next_attempt ~= '' and leases.find(next_attempt)
  return given and given.name == name and leases.reply(given, false) or nil
end
local server_name, index = servers.of_slot(name)
local server = servers.read(server_name)
slots.hide(slot, server)

if mode == 'adopt' then
  leases.pass_to(slot, '', epoch)
  redis.call('ZREM', key.expiry, attempt)
  redis.call('HSET', key.slot(name), 'freed_us', now)
  slot.freed_us = now
  slots.set_state(slot, 'adoptable')
  slots.show(slot, server)
  servers.touch(server_name)
  return nil
end

if mode == 'free' then
  leases.finish(slot, seconds or 0)
  leases.forget_job(job, attempt)
else
  local real = leases.finish(slot, seconds)
  if mode == 'settle' and real > 0 then estimate.learn(slot.model, slot.tenant, real) end
  leases.settle(slot, worker, real, lease_us)
end
if rest_us then slots.rest(server, now + rest_us) end

if mode == 'free' then
  slots.idle(slot)
elseif mode == 'suspect' then
  slots.set_state(slot, 'quarantined')
elseif next_attempt ~= '' and whole and slots.is_usable(server, index) and server.pool == slot.pool
  and server.host == slot.host and not servers.is_resting(server_name) then
  local view, models = pick.view(slot.pool), servers.models(server)
  local ticket = pick.best(view, models, server_name)
  if ticket then
    ticket = pick.prefer_warm(view, ticket, slot.warm, models, server_name, head_start_us)
    if slot.asked then redis.call('HDEL', key.slot(name), 'asked') end
    slot.asked = nil
    return give(slot, server, view, ticket, next_attempt, worker, lease_us)
  end
end

if mode == 'settle' then
  slots.set_state(slot, 'settling')
  redis.call('HSET', key.slot(name), 'estimate', slot.estimate)
end
return nil
