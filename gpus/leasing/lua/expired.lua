-- Why: what nobody renewed in time, for the sweep to judge; nothing is freed here. If nobody looked for a long
--   time (Redis paused, beat down), nothing runs out before a full lease time from now.
-- Keys: KEYS[1] prefix
-- Args: clock, limit, gap µs between two calls that is too long, lease µs
-- Returns: per lease or unconfirmed end: {pool, slot, job, attempt, epoch, model, tenant, settling 0|1, worker,
--   held seconds, and of its follower: attempt, job, model; '' where it has none}
-- include: gate
-- include: ends
-- include: floor
-- include: leases
local limit, gap_us, lease_us = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])

if not is_whole() then return refuse() end
local last = tonumber(redis.call('HGET', key('ticking'), 'at_us'))
redis.call('HSET', key('ticking'), 'at_us', now)
if last and now - last > gap_us then redis.call('HSET', key('ticking'), 'floor_us', now + lease_us) end
if expiry_floor() > now then return {} end

local rows = {}
for _, attempt in ipairs(redis.call('ZRANGEBYSCORE', key('expiry'), '-inf', now, 'LIMIT', 0, limit)) do
  local slot = find_lease(attempt)
  if slot then
    local follower = read_follower(slot) or {}
    rows[#rows + 1] = { slot.pool, slot.name, slot.job, attempt, slot.epoch, slot.model, slot.tenant, 0,
      slot.worker, tostring((now - slot.leased_us) / 1000000), follower.attempt or '', follower.job or '', follower.model or '' }
  else
    local found = read_end(attempt)
    rows[#rows + 1] = { found.pool, found.slot, found.job, attempt, found.epoch, found.model, found.tenant, 1,
      found.worker, tostring(found.seconds), '', '', '' }
  end
end
return rows
