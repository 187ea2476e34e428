-- Why: a living holder keeps its leases and unconfirmed ends. A lease that the sweep made adoptable and nobody
-- took yet comes back. While the index is being rebuilt, what it does not know is announced to it.
-- Keys: KEYS[1] prefix
-- Args: clock, worker, lease µs, number of leases, then per lease and then per settling end: pool, slot, job,
--   attempt, epoch, model, tenant, priority, fence, leased at µs, estimate
-- Returns: the places (from 0) of those that are not held any more
-- include: gate
-- include: restore
local worker, lease_us, running = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local FIELDS = 11

local whole = gate.is_whole()
if not whole and not gate.is_filling() then return gate.refuse() end

local function renew(slot_name, job, attempt, epoch)
  local slot = leases.held_under(slot_name, job, attempt, epoch)
  if slot then
    local ours = slot.worker == worker
    if slot.state == 'leased' and slot.worker == '' then
      leases.pass_to(slot, worker, epoch)
      ours = true
    end
    if not ours then return false end
    if slot.state == 'adoptable' then
      slots.hide(slot, servers.read((servers.of_slot(slot_name))))
      slots.set_state(slot, 'leased')
    end
  else
    local settling = leases.read_settling(attempt)
    if not settling or settling.slot ~= slot_name or settling.epoch ~= epoch then return nil end
  end
  redis.call('ZADD', key.expiry, now + lease_us, attempt)
  return true
end

local lost = {}
for i = 0, (#ARGV - 4) / FIELDS - 1 do
  local first = 5 + i * FIELDS
  local held = renew(ARGV[first + 1], ARGV[first + 2], ARGV[first + 3], tonumber(ARGV[first + 4]))
  if held == nil and not whole then
    local lease = restore.read(ARGV, first)
    lease.worker = worker
    if i < running then
      held = restore.lease(lease, lease_us)
    else
      held = restore.settling(lease, lease_us)
    end
  end
  if not held then lost[#lost + 1] = i end
end
return lost
