-- Why: lists leases that were not renewed in time, for the sweep to decide; frees no slot. After a long silence (Redis
--   was paused) every lease gets one full lease time from now, except leases that did not renew within the previous
--   such grant. Caller: jobs/sweeps/expired_leases.py.
-- Keys: expiry, generation, leases, rebuild, settling, slot, ticking
-- Args:
--   limit: number, maximum count of rows
--   gap_us: number, a longer silence grants a lease time
--   lease_us: number
-- Returns: per lease or uncommitted end: {pool, slot, job, attempt, epoch, model, tenant, settling 0|1, worker, seconds
--   held, then of its follower: attempt, job, model; '' without a follower}
-- include: keys
-- include: call
-- include: index
-- include: leases
local limit, gap_us, lease_us = args.limit, args.gap_us, args.lease_us

if not Index.is_whole() then return Index.refuse() end
local silent_us = Index.longest_silence()
Index.record_sweep()
Index.grant_time(silent_us > gap_us, lease_us)

local floor_us, had_time_us = Index.read_floor()
local clock_us = Call.redis_clock(Call.clock_us)
local latest_us = math.max(Call.now, clock_us) + 1
local rows = {}

local function add(attempt)
  local slot = Leases.find_lease(attempt)
  if slot then
    local follower = Leases.read_follower(slot) or {}
    rows[#rows + 1] = { slot.pool, slot.name, slot.job, attempt, slot.epoch, slot.model, slot.tenant, 0,
      slot.worker, tostring((Call.now - slot.leased_us) / 1000000), follower.attempt or '', follower.job or '', follower.model or '' }
  else
    local found = Leases.read_end(attempt)
    rows[#rows + 1] = { found.pool, found.slot, found.job, attempt, found.epoch, found.model, found.tenant, 1,
      found.worker, tostring(found.seconds), '', '', '' }
  end
end

-- While a floor is in force, or clocks differ, some of these have not expired yet.
local skipped = 0
repeat
  local found = redis.call('ZRANGEBYSCORE', Keys.expiry(), '-inf', latest_us, 'WITHSCORES', 'LIMIT', #rows + skipped, limit)
  for i = 1, #found, 2 do
    if #rows == limit then break end
    if Index.runs_out_in(tonumber(found[i + 1]), clock_us, floor_us, had_time_us) <= 0 then add(found[i]) else skipped = skipped + 1 end
  end
until #rows == limit or #found < 2 * limit
return rows
