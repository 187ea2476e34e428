-- Whether the index may be trusted, and what has run out in it.
-- include: keys
-- include: call

-- Whether the index may be trusted. A marker that names another run than the one of this process was copied here by a
-- restart or a failover, which may have lost the last writes; one that names another replication, by a failover away
-- from this process and back. A refusal is an error reply that the store turns into
-- LeasingUnavailable.

-- made: run id and replication, the latter missing where a version wrote it that did not know of it.
local function is_of_this_run(made) return made[1] == Call.run_id and (not made[2] or made[2] == Call.replication) end

local function is_whole()
  return is_of_this_run(redis.call('HMGET', Keys.generation(), 'run_id', 'replication'))
end

-- Wiped, and being filled from the database: everything works except giving out leases.
local function is_filling()
  local rebuild = redis.call('HMGET', Keys.rebuild(), 'run_id', 'replication', 'phase')
  return is_of_this_run(rebuild) and rebuild[3] == 'filling'
end

local function is_open() return is_whole() or is_filling() end

local function refuse()
  if redis.call('EXISTS', Keys.rebuild()) == 1 then
    return redis.error_reply('UNAVAILABLE the index is being rebuilt')
  end
  return redis.error_reply('UNAVAILABLE no generation: the index must be rebuilt from the database')
end

-- After a long silence nothing runs out before the floor, so that living keepers get time to renew. What expires before
-- `had_time_us` had that time once already and was not renewed in it.

-- Added to the time at which a lease expires: it is the fleet's. A version that goes by TIME alone writes whole
-- numbers.
local FLEET_TIME = 0.5

local function expires_at(time_us) return time_us + FLEET_TIME end

local function read_floor()
  local floor = redis.call('HMGET', Keys.ticking(), 'kept_floor_us', 'had_time_us')
  return tonumber(floor[1]) or 0, tonumber(floor[2]) or 0
end

-- In how many µs what has this score runs out; clock_us: Redis' own; floor_us, had_time_us: as read.
local function runs_out_in(score, clock_us, floor_us, had_time_us)
  local expires = math.floor(score)
  local clock = score == expires and clock_us or Call.now
  if expires >= had_time_us then expires = math.max(expires, floor_us) end
  return expires - clock
end

-- Sweepers of a version that knows no `had_time_us` write `floor_us` alone, anew after each of their silences: theirs
-- is taken over where none is in force, and so is not put off by the next.
local function grant_time(was_silent, lease_us)
  local seen = redis.call('HMGET', Keys.ticking(), 'kept_floor_us', 'floor_us')
  local before_us, floor_us = tonumber(seen[1]) or 0, tonumber(seen[2]) or 0
  if before_us > Call.now then return end
  if was_silent then floor_us = Call.now + lease_us end
  if floor_us > Call.now then
    redis.call('HSET', Keys.ticking(), 'floor_us', floor_us, 'kept_floor_us', floor_us, 'had_time_us', before_us)
  end
end

-- Silences: times in which no keeper renewed and no sweep looked for expired leases, because Redis or all of them were
-- paused.

-- The longest silence since the last look for expired leases, in µs, the present one included; 0 where an older
-- version opened the index and no sweep has looked since.
local function longest_silence()
  local seen = redis.call('HMGET', Keys.ticking(), 'at_us', 'renewed_us', 'silent_us')
  if not seen[1] then return 0 end
  return math.max(tonumber(seen[3]) or 0, Call.now - math.max(seen[1], seen[2] or 0))
end

local function note_renewal()
  redis.call('HSET', Keys.ticking(), 'silent_us', longest_silence(), 'renewed_us', Call.now)
end

-- A version that goes by TIME alone writes `at_us` only: `older_us` is when its sweeper looked (call.lua).
local function note_look()
  local seen = redis.call('HMGET', Keys.ticking(), 'at_us', 'looked_us')
  if seen[1] and seen[1] ~= seen[2] then redis.call('HSET', Keys.ticking(), 'older_us', seen[1]) end
  redis.call('HSET', Keys.ticking(), 'silent_us', 0, 'at_us', Call.now, 'looked_us', Call.now)
end

return {
  grant_time = grant_time, is_filling = is_filling, is_of_this_run = is_of_this_run, is_open = is_open,
  is_whole = is_whole, longest_silence = longest_silence, note_look = note_look, note_renewal = note_renewal,
  read_floor = read_floor, refuse = refuse, runs_out_in = runs_out_in, expires_at = expires_at,
}
