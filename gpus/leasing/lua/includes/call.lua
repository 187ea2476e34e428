-- What belongs to one call. The functions stay in the server from call to call, and all that they remember stands here:
-- each call begins with nothing of the one before but what a process was told when it was greeted.
-- include: keys
-- include: time
local run_id  -- of the server's process that this is; nil in one that nobody greeted (see gpus/leasing/scripts.py)
local replication  -- its name then; a process gets another one when it becomes a master
local pools, rules, kept, open, paces, class_lists  -- read in this call, each by name
local set_asides  -- tenants that this call has set aside (turns.lua)

-- By prefix: the fleet's clock as this process last read it (time.lua). Its key stands beside the index, not in it: a
-- rebuild goes on with the same time.
local CLOCKS = {}

local function clock_of_fleet()
  local clock = CLOCKS[prefix]
  if not clock then
    clock = { key = Keys.clock(), raw = 0, now = 0, saved_raw = 0, saved_now = 0 }
    CLOCKS[prefix] = clock
  end
  return clock
end

-- Returns the script's arguments by name: its head lists them. Beside these, in each call: since_us: µs since the
-- caller sent its last call that was answered, or nil; clock_us: a simulator's clock in place of TIME, or nil.
local function begin_call(keys, packed)
  prefix, pools, rules, kept, open, paces, class_lists, set_asides = keys[1], {}, {}, {}, {}, {}, {}, 0
  local args = cjson.decode(packed)
  ask_time(clock_of_fleet(), args)
  return args
end

-- latest_us: see `read_time`.
local function go_on_after(args, latest_us) ask_time(clock_of_fleet(), args, latest_us) end
