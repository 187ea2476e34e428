-- What belongs to one call: the fleet's time, and what the call has read. The functions stay in the server from call
-- to call, and everything that they remember is in the table below: a call begins with nothing of the one before but
-- what its process was told when it was greeted, and the fleet's clock.
-- include: keys

-- now: the fleet's time, µs since the epoch. run_id: of the server's process that this is; nil in one that nobody
-- greeted (gpus/leasing/scripts.py). replication: its name then; a process gets another one when it becomes a master.
-- pools, rules, kept, open, paces, class_lists: what this call has read, each by name. learnt: the mean that it has
-- changed (shares.lua), {model, tenant, seconds} or nil. set_asides: tenants that it has set aside (turns.lua).
local Call = {}
Call.run_id, Call.replication = nil, nil

-- The fleet's time: `now`, microseconds since the epoch. It is Redis' own clock as long as that only goes on; where it
-- is set back or ahead, the fleet's time goes on as before and comes nearer by a tenth of the time that passes. So
-- nothing here is ever judged by a clock that was set (docs/adr/0033-one-time.md).

local SAVED_EVERY_US = 10000
local SLACK_US = 2000000       -- a call is under way so long at most (connect.py: TIMEOUT_SECONDS)
local NEARER = 0.1             -- of the time that passes
local OLDER_LOOK_US = 60000000
local MARGIN_US = 10000000     -- fences may be that much later than starts in the database, where clocks differ

-- Redis' own clock, or a simulator's in its place.
local function redis_clock(clock_us)
  if clock_us then return clock_us end
  local clock = redis.call('TIME')
  return clock[1] * 1000000 + clock[2]
end

-- A sweeper of a version that goes by TIME alone looked lately: the leases that it judges must not lag behind.
local function is_shared_with_older(before_us)
  local seen = redis.call('HMGET', Keys.ticking(), 'at_us', 'looked_us', 'older_us')
  local looked_us = tonumber(seen[1] ~= seen[2] and seen[1] or seen[3])
  return looked_us and math.abs(before_us - looked_us) < OLDER_LOOK_US
end

-- Nearer to Redis' own clock, by a tenth of what passed.
local function approach(raw, time, passed)
  if time == raw then return time end
  local nearer = math.min(math.abs(time - raw), math.floor(passed * NEARER))
  return time > raw and time - nearer or time + nearer
end

-- clock: {key; packed, saved_raw, saved_now: what this library last saved there; raw, now:
-- at its last call}. since: µs since the caller sent its last call that was answered, or nil. No more than that passed
-- since anybody's last call, whatever the clock says.
-- latest_us: of the latest lease that the database knows of, or nil; time goes on after it.
local function read_time(clock, raw, since, latest_us)
  local packed = redis.call('GET', clock.key)
  local last_raw, last_now = 0, 0
  if packed and packed == clock.packed then
    last_raw, last_now = clock.raw, clock.now
  elseif packed then  -- a library of another version saved it, or it came with a failover
    last_raw, last_now = cmsgpack.unpack(packed)
  end
  local shown = raw - last_raw
  local passed = shown < 0 and 1 or shown
  if packed and shown > SLACK_US then
    if not since then  -- nobody knows: a clock that was set back is set right, if it was
      passed = math.max(0, shown - math.max(0, last_now - last_raw))
    elseif shown > since + SLACK_US and not is_shared_with_older(last_raw) then
      passed = since
    end
  end
  Call.now = approach(raw, last_now + passed, passed)
  if latest_us and latest_us > Call.now then Call.now = latest_us + (latest_us > Call.now + SLACK_US and MARGIN_US or 0) end
  clock.packed, clock.saved_raw, clock.saved_now = cmsgpack.pack(raw, Call.now), raw, Call.now
  redis.call('SET', clock.key, clock.packed)
end

-- The key is read and written once in SAVED_EVERY_US, and whenever the clock was set; in between this process knows.
local function ask_time(clock, latest_us)
  local raw = redis_clock(Call.clock_us)
  local passed = raw - clock.saved_raw
  if raw >= clock.raw and passed < SAVED_EVERY_US and not latest_us then
    Call.now = approach(raw, clock.saved_now + passed, passed)
  else
    read_time(clock, raw, Call.since_us, latest_us)
  end
  clock.raw, clock.now = raw, Call.now
end

-- By prefix: the fleet's clock as this process last read it (call.lua). Its key stands beside the index, not in it: a
-- rebuild goes on with the same time.
local CLOCKS = {}

local function clock_of(prefix)
  local clock = CLOCKS[prefix]
  if not clock then
    clock = { key = Keys.clock(), raw = 0, now = 0, saved_raw = 0, saved_now = 0 }
    CLOCKS[prefix] = clock
  end
  return clock
end

-- A table that few calls fill: an empty one is kept, as a new one costs more than a look into it.
local function emptied(read) return read and not next(read) and read or {} end

-- since: µs since the caller sent its last call that was answered, or nil; clock_us: a simulator's clock in place of TIME,
-- or nil.
local function begin_call(prefix, since, clock_us)
  Keys.set_prefix(prefix)
  Call.since_us, Call.clock_us, Call.clock = since, clock_us, clock_of(prefix)
  Call.pools, Call.rules, Call.learnt, Call.set_asides = {}, {}, nil, 0
  Call.kept, Call.open = emptied(Call.kept), emptied(Call.open)
  Call.paces, Call.class_lists = emptied(Call.paces), emptied(Call.class_lists)
  ask_time(Call.clock)
end

-- latest_us: see `read_time`.
local function go_on_after(latest_us) ask_time(Call.clock, latest_us) end

Call.begin_call = begin_call
Call.go_on_after = go_on_after
Call.redis_clock = redis_clock
return Call
