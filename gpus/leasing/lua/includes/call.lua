-- State of one call: the fleet's time, and a cache of what the call has read. The library stays loaded between calls,
-- and all of its state is in the table below. A call keeps from earlier calls only the server's identity, as the
-- client set it (gpus/leasing/scripts.py), and the fleet's clock.
-- include: keys

-- now: the fleet's time, µs since the epoch. run_id: of this server process; nil until a client has sent it.
-- replication: its replication id then; a server gets a new one when it becomes a master. pools, rules, kept, open,
-- paces, class_lists: caches of this call, each by name. learnt: the mean that this call has changed (shares.lua),
-- {model, tenant, seconds} or nil. set_asides: how many tenants this call has set aside (turns.lua).
local Call = {}
Call.run_id, Call.replication = nil, nil

-- The fleet's time, `now`, follows the clock of Redis. When that clock is set back or ahead, the fleet's time runs on
-- unchanged and approaches it by a tenth of the time that passes, so that no lease expires by a clock jump
-- (docs/adr/0033-fleet-wide-clock.md).

local SAVED_EVERY_US = 10000
local SLACK_US = 2000000       -- longest duration of a call (connect.py: TIMEOUT_SECONDS)
local NEARER = 0.1             -- correction per time that passes
local OLDER_LOOK_US = 60000000
local MARGIN_US = 10000000     -- how much later fences may be than starts in the database, if clocks differ

-- The clock of Redis, or the simulator's clock in its place.
local function redis_clock(clock_us)
  if clock_us then return clock_us end
  local clock = redis.call('TIME')
  return clock[1] * 1000000 + clock[2]
end

-- Whether a sweeper of an older version, which uses TIME alone, ran recently: its leases must not lag behind TIME.
local function is_shared_with_older(before_us)
  local seen = redis.call('HMGET', Keys.ticking(), 'at_us', 'looked_us', 'older_us')
  local looked_us = tonumber(seen[1] ~= seen[2] and seen[1] or seen[3])
  return looked_us and math.abs(before_us - looked_us) < OLDER_LOOK_US
end

-- The time, moved towards the clock of Redis by a tenth of the time that passed.
local function approach(raw, time, passed)
  if time == raw then return time end
  local nearer = math.min(math.abs(time - raw), math.floor(passed * NEARER))
  return time > raw and time - nearer or time + nearer
end

-- Computes `now` and saves it. clock: {key; packed, saved_raw, saved_now: as last saved by this library; raw, now: at its
-- last call}. since: µs since the caller sent its last answered call, or nil; an upper bound of the time since any
-- call, whatever the clock shows. latest_us: start of the latest lease in the database, or nil; time continues after it.
local function read_time(clock, raw, since, latest_us)
  local packed = redis.call('GET', clock.key)
  local last_raw, last_now = 0, 0
  if packed and packed == clock.packed then
    last_raw, last_now = clock.raw, clock.now
  elseif packed then  -- saved by a library of another version, or before a failover
    last_raw, last_now = cmsgpack.unpack(packed)
  end
  local shown = raw - last_raw
  local passed = shown < 0 and 1 or shown
  if packed and shown > SLACK_US then
    if not since then  -- no bound is known: perhaps a clock that was set back is corrected again
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

-- Reads and writes the key once in SAVED_EVERY_US, and whenever the clock was set; in between, computes from memory.
local function update_time(clock, latest_us)
  local raw = redis_clock(Call.clock_us)
  local passed = raw - clock.saved_raw
  if raw >= clock.raw and passed < SAVED_EVERY_US and not latest_us then
    Call.now = approach(raw, clock.saved_now + passed, passed)
  else
    read_time(clock, raw, Call.since_us, latest_us)
  end
  clock.raw, clock.now = raw, Call.now
end

-- By prefix: the fleet's clock as this process last read it. Its key is outside the index, so that time continues
-- through a rebuild.
local CLOCKS = {}

local function clock_of(prefix)
  local clock = CLOCKS[prefix]
  if not clock then
    clock = { key = Keys.clock(), raw = 0, now = 0, saved_raw = 0, saved_now = 0 }
    CLOCKS[prefix] = clock
  end
  return clock
end

-- Keeps a cache table that is empty, because a new table costs more than this check.
local function reuse_if_empty(read) return read and not next(read) and read or {} end

-- since: µs since the caller sent its last answered call, or nil; clock_us: a simulator's clock in place of TIME, or nil.
local function begin_call(prefix, since, clock_us)
  Keys.set_prefix(prefix)
  Call.since_us, Call.clock_us, Call.clock = since, clock_us, clock_of(prefix)
  Call.pools, Call.rules, Call.learnt, Call.set_asides = {}, {}, nil, 0
  Call.kept, Call.open = reuse_if_empty(Call.kept), reuse_if_empty(Call.open)
  Call.paces, Call.class_lists = reuse_if_empty(Call.paces), reuse_if_empty(Call.class_lists)
  update_time(Call.clock)
end

-- latest_us: see `read_time`.
local function advance_past(latest_us) update_time(Call.clock, latest_us) end

Call.begin_call = begin_call
Call.advance_past = advance_past
Call.redis_clock = redis_clock
return Call
