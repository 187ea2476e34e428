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

-- latest_us: see `read_time`.
local function begin_call(keys, args, latest_us)
  prefix, pools, rules, kept, open, paces, class_lists, set_asides = keys[1], {}, {}, {}, {}, {}, {}, 0
  ask_time(clock_of_fleet(), args[1], latest_us)
end
