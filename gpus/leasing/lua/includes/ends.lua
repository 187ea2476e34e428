-- Ends that wait for their commit.
-- include: settle

-- nil, or {slot, job, epoch, pool, model, tenant, worker, seconds}; seconds: its real charge.
local function read_end(attempt)
  local packed = redis.call('HGET', Keys.settling(), attempt)
  if not packed then return nil end
  local slot, job, epoch, pool, model, tenant, worker, seconds = cmsgpack.unpack(packed)
  return {
    slot = slot, job = job, epoch = epoch, pool = pool, model = model, tenant = tenant, worker = worker,
    seconds = seconds,
  }
end

-- The end under exactly this ref, or nil.
local function end_under(slot, job, attempt, epoch)
  local found = read_end(attempt)
  if found and found.slot == slot and found.job == job and found.epoch == epoch then return found end
  return nil
end

-- The end is committed, or given up: forgets it. Returns the slot if it was only waiting for that.
local function forget_end(attempt, found)
  redis.call('HDEL', Keys.settling(), attempt)
  redis.call('ZREM', Keys.expiry(), attempt)
  forget_job(found.job, attempt)
  local slot = read_slot(found.slot)
  if slot and slot.state == 'settling' and slot.attempt == attempt then return slot end
  return nil
end
