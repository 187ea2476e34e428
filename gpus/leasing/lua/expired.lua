-- Why: what nobody renewed in time, for the sweep to judge; nothing is freed here. If nobody looked for a long
-- time (Redis paused, beat down), nothing runs out before a full lease time from now.
-- Keys: KEYS[1] prefix
-- Args: clock, limit, gap µs between two calls that is too long, lease µs
-- Returns: per lease or unconfirmed end: {pool, slot, job, attempt, epoch, model, tenant, settling 0|1, worker,
--   held seconds}
-- include: gate
-- include: leases
local limit, gap_us, lease_us = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])

if not gate.is_whole() then return gate.refuse() end
local last = tonumber(redis.call('HGET', key.ticking, 'at_us'))
redis.call('HSET', key.ticking, 'at_us', now)
if last and now - last > gap_us then redis.call('HSET', key.ticking, 'floor_us', now + lease_us) end
if leases.floor() > now then return {} end

local found = {}
for _, attempt in ipairs(redis.call('ZRANGEBYSCORE', key.expiry, '-inf', now, 'LIMIT', 0, limit)) do
  local slot = leases.find(attempt)
  local end_of = not slot and leases.read_settling(attempt)
  if slot then
    found[#found + 1] = { slot.pool, slot.name, slot.job, attempt, slot.epoch, slot.model, slot.tenant, 0,
      slot.worker, tostring((now - slot.leased_us) / 1000000) }
  elseif end_of then
    found[#found + 1] = { end_of.pool, end_of.slot, end_of.job, attempt, end_of.epoch, end_of.model,
      end_of.tenant, 1, end_of.worker, end_of.seconds }
  end
end
return found
