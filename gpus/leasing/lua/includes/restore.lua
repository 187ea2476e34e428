-- Puts a lease back into an index that is being rebuilt, told by the database or by its living holder. Of two
-- attempts on one slot the one that was leased later is right: the other one's end is on its way.
-- include: leases
local restore = {}

-- fields: the array of `leases.reply` without `adopted`.
function restore.read(fields, first)
  local field = {}
  for i = 0, 10 do field[i + 1] = fields[first + i] end
  return {
    pool = field[1], slot = field[2], job = field[3], attempt = field[4], epoch = tonumber(field[5]),
    model = field[6], tenant = field[7], priority = tonumber(field[8]), fence = tonumber(field[9]),
    leased_us = tonumber(field[10]), estimate = tonumber(field[11]),
  }
end

local function slot_for(lease)
  local name, index = servers.of_slot(lease.slot)
  servers.note(name, lease.pool, index)
  return slots.read(lease.slot) or slots.create(lease.slot, servers.read(name).pool), servers.read(name)
end

-- The same attempt is known already: the higher epoch is right; a worker is better than none.
local function reconcile(slot, lease, lease_us)
  if lease.epoch < slot.epoch then return false end
  if lease.epoch == slot.epoch and slot.worker ~= '' then return lease.worker == '' or lease.worker == slot.worker end
  leases.pass_to(slot, lease.worker, lease.epoch)
  redis.call('ZADD', key.expiry, now + lease_us, slot.attempt)
  return true
end

-- True if the attempt holds its slot now, or its end is known to be on its way.
function restore.lease(lease, lease_us)
  if redis.call('EXISTS', key.settling(lease.attempt)) == 1 then return true end
  local slot, server = slot_for(lease)
  if slot.state == 'leased' or slot.state == 'adoptable' then
    if slot.attempt == lease.attempt then return reconcile(slot, lease, lease_us) end
    if slot.leased_us >= lease.leased_us then return false end
    redis.call('HDEL', key.leases, slot.attempt, slot.asked or slot.attempt)
    redis.call('ZREM', key.expiry, slot.attempt)
    leases.forget_job(slot.job, slot.attempt)
    redis.call('HDEL', key.slot(slot.name), 'asked')
  end
  slots.hide(slot, server)
  local band, member = line.band(lease.priority), line.member(lease.job, lease.priority)
  local stood, left = line.remove(lease.pool, band, lease.model, lease.tenant, member)
  if stood and left then fair.withdraw(lease.pool, band, lease.tenant) end
  redis.call('SADD', key.pools, lease.pool)
  lease.host = server.host
  leases.begin(slot, lease, lease_us)
  fair.correct(lease.pool, band, lease.tenant, lease.estimate)
  return true
end

-- An end that waits for its commit in its process. Its slot stays shut if nothing else is known of it.
function restore.settling(lease, lease_us)
  local slot, server = slot_for(lease)
  if slot.attempt == lease.attempt and (slot.state == 'leased' or slot.state == 'adoptable') then
    return reconcile(slot, lease, lease_us)
  end
  local end_of = { name = lease.slot, attempt = lease.attempt, job = lease.job, epoch = lease.epoch,
    pool = lease.pool, model = lease.model, tenant = lease.tenant }
  leases.settle(end_of, lease.worker, lease.estimate, lease_us)
  if slot.state == nil or slot.state == 'free' or slot.state == 'off' then
    slots.hide(slot, server)
    slots.set_state(slot, 'settling')
    redis.call('HSET', key.slot(slot.name), 'attempt', lease.attempt, 'job', lease.job, 'epoch', lease.epoch,
      'model', lease.model, 'tenant', lease.tenant, 'pool', lease.pool, 'priority', lease.priority,
      'leased_us', lease.leased_us, 'estimate', lease.estimate, 'worker', lease.worker, 'host', server.host,
      'fence', math.max(slot.fence, lease.fence))
  end
  return true
end
