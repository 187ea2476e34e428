-- Why: the database says that this slot's GPU may still be busy with an attempt that nobody controls; nobody gets
-- it until it is proven free. A lease (or end) of another attempt stays: it was given after a proof.
-- Keys: KEYS[1] prefix
-- Args: clock, slot, attempt
-- Returns: 1 if the slot is quarantined now, else 0
-- include: gate
-- include: leases
local name, attempt = ARGV[2], ARGV[3]

if not gate.is_open() then return gate.refuse() end
local server_name, index = servers.of_slot(name)
servers.note(server_name, '', index)
local server = servers.read(server_name)
local slot = slots.read(name) or slots.create(name, server.pool)
if slot.state == 'quarantined' then return 1 end
local is_held = slot.state == 'leased' or slot.state == 'adoptable' or slot.state == 'settling'
if is_held and slot.attempt ~= attempt then return 0 end
slots.hide(slot, server)
if slot.state == 'leased' or slot.state == 'adoptable' then
  leases.finish(slot)
  leases.forget_job(slot.job, attempt)
end
slots.set_state(slot, 'quarantined')
redis.call('HSET', key.slot(name), 'attempt', attempt)
servers.touch(server_name)
return 1
