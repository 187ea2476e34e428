-- The fleet's time: `now`, microseconds since the epoch. It is Redis' own clock as long as that only goes on; where it is
-- set back or ahead, the fleet's time goes on as before and comes nearer by a tenth of the time that passes. So nothing
-- here is ever judged by a clock that was set (docs/adr/0033-one-time.md).
local now

local SAVED_EVERY_US = 1000
local SLACK_US = 2000000       -- a call is under way so long at most (connect.py: TIMEOUT_SECONDS)
local NEARER = 0.1             -- of the time that passes
local COLON = 58
local OLDER_LOOK_US = 60000000
local MARGIN_US = 10000000     -- fences may be that much later than starts in the database, where clocks differ

-- Redis' own clock, as `ask_time` is told of it.
local function redis_clock(told)
  if told ~= '' and told:byte() ~= COLON then return tonumber(told:match('^%d+')) end
  local clock = redis.call('TIME')
  return clock[1] * 1000000 + clock[2]
end

-- A sweeper of a version that goes by TIME alone looked lately: the leases that it judges must not lag behind.
local function is_shared_with_older(index, before_us)
  local seen = redis.call('HMGET', index .. 'ticking', 'at_us', 'looked_us', 'older_us')
  local looked_us = tonumber(seen[1] ~= seen[2] and seen[1] or seen[3])
  return looked_us and math.abs(before_us - looked_us) < OLDER_LOOK_US
end

-- at: the clock's key. index: how the index' keys begin. told: '<µs of a simulator in place of TIME>:<µs since the caller
-- sent its last call that was answered>', either may be empty. No more than that passed since anybody's last call,
-- whatever the clock says. latest_us: of the latest lease that the database knows of, or nil; time goes on after it.
local function ask_time(at, index, told, latest_us)
  local raw = redis_clock(told)
  local saved = redis.call('GET', at)
  local saved_raw, saved_now = 0, 0
  if saved then saved_raw, saved_now = cmsgpack.unpack(saved) end
  local shown = raw - saved_raw
  local passed = shown < 0 and 1 or shown
  if saved and shown > SLACK_US then
    local since = tonumber(told:match(':(%d+)$'))
    if not since then  -- nobody knows: a clock that was set back is set right, if it was
      passed = math.max(0, shown - math.max(0, saved_now - saved_raw))
    elseif shown > since + SLACK_US and not is_shared_with_older(index, saved_raw) then
      passed = since
    end
  end
  now = saved_now + passed
  if now ~= raw then
    local nearer = math.min(math.abs(now - raw), math.floor(passed * NEARER))
    now = now > raw and now - nearer or now + nearer
  end
  local is_before = latest_us and latest_us > now
  if is_before then now = latest_us + (latest_us > now + SLACK_US and MARGIN_US or 0) end
  if is_before or shown ~= passed or passed >= SAVED_EVERY_US then redis.call('SET', at, cmsgpack.pack(raw, now)) end
end
