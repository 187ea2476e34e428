-- Whether the index may be trusted, and which leases have expired.
-- include: keys
-- include: call

-- Trust: a marker with another run id was copied here by a restart or a failover, which may have lost the last writes;
-- one with another replication id, by a failover away from this server and back. A refusal is an error reply that
-- gpus/leasing/scripts.py turns into LeasingUnavailable.

-- made: run id and replication id; older versions wrote no replication id.
local function is_of_this_run(made) return made[1] == Call.run_id and (not made[2] or made[2] == Call.replication) end

-- Whether the index is complete and trusted: claims are allowed.
local function is_whole()
  return is_of_this_run(redis.call('HMGET', Keys.generation(), 'run_id', 'replication'))
end

-- Wiped, and being filled from the database: everything works except claims.
local function is_filling()
  local rebuild = redis.call('HMGET', Keys.rebuild(), 'run_id', 'replication', 'phase')
  return is_of_this_run(rebuild) and rebuild[3] == 'filling'
end

-- Whether the index is whole or being filled: all but claims are allowed.
local function is_open() return is_whole() or is_filling() end

-- The error reply of a refused call.
local function refuse()
  if redis.call('EXISTS', Keys.rebuild()) == 1 then
    return redis.error_reply('UNAVAILABLE the index is being rebuilt')
  end
  return redis.error_reply('UNAVAILABLE no generation: the index must be rebuilt from the database')
end

-- The floor: after a long silence no lease expires before it, so that live keepers have time to renew. A lease that
-- expires before `had_time_us` had that time once already and did not renew.

-- Marks an expiry as fleet time: an older version, which uses TIME alone, writes whole numbers.
local FLEET_TIME = 0.5

-- The score in `expiry` for a time.
local function expires_at(time_us) return time_us + FLEET_TIME end

-- The floor of expiry, and `had_time_us`.
local function read_floor()
  local floor = redis.call('HMGET', Keys.ticking(), 'kept_floor_us', 'had_time_us')
  return tonumber(floor[1]) or 0, tonumber(floor[2]) or 0
end

-- µs until the lease with this score expires. clock_us: the clock of Redis; floor_us, had_time_us: of `read_floor`.
local function runs_out_in(score, clock_us, floor_us, had_time_us)
  local expires = math.floor(score)
  local clock = score == expires and clock_us or Call.now
  if expires >= had_time_us then expires = math.max(expires, floor_us) end
  return expires - clock
end

-- Sets the floor after a silence. Sweepers of a version without `had_time_us` write `floor_us` alone, after each silence:
-- it is adopted if no floor is in force, so that their next one does not extend it.
local function grant_time(was_silent, lease_us)
  local seen = redis.call('HMGET', Keys.ticking(), 'kept_floor_us', 'floor_us')
  local before_us, floor_us = tonumber(seen[1]) or 0, tonumber(seen[2]) or 0
  if before_us > Call.now then return end
  if was_silent then floor_us = Call.now + lease_us end
  if floor_us > Call.now then
    redis.call('HSET', Keys.ticking(), 'floor_us', floor_us, 'kept_floor_us', floor_us, 'had_time_us', before_us)
  end
end

-- Silence: a time in which no keeper renewed and no sweep listed expired leases, because Redis or all of them were
-- paused.

-- The longest silence since the last sweep, in µs, including the present one; 0 if an older version opened the index
-- and no sweep has run since.
local function longest_silence()
  local seen = redis.call('HMGET', Keys.ticking(), 'at_us', 'renewed_us', 'silent_us')
  if not seen[1] then return 0 end
  return math.max(tonumber(seen[3]) or 0, Call.now - math.max(seen[1], seen[2] or 0))
end

-- A keeper has renewed: records the silence before.
local function record_renewal()
  redis.call('HSET', Keys.ticking(), 'silent_us', longest_silence(), 'renewed_us', Call.now)
end

-- An older version, which uses TIME alone, writes `at_us` only: `older_us` is when its sweeper ran (call.lua).
local function record_sweep()
  local seen = redis.call('HMGET', Keys.ticking(), 'at_us', 'looked_us')
  if seen[1] and seen[1] ~= seen[2] then redis.call('HSET', Keys.ticking(), 'older_us', seen[1]) end
  redis.call('HSET', Keys.ticking(), 'silent_us', 0, 'at_us', Call.now, 'looked_us', Call.now)
end

return {
  grant_time = grant_time, is_filling = is_filling, is_of_this_run = is_of_this_run, is_open = is_open,
  is_whole = is_whole, longest_silence = longest_silence, record_sweep = record_sweep, record_renewal = record_renewal,
  read_floor = read_floor, refuse = refuse, runs_out_in = runs_out_in, expires_at = expires_at,
}
