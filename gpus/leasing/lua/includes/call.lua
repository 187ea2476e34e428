-- What belongs to one call. The functions stay in the server from call to call, and all that they remember stands here:
-- each call begins with nothing of the one before but what a process was told when it was greeted.
-- include: time
local run_id  -- of the server's process that this is; nil in one that nobody greeted (see gpus/leasing/scripts.py)
local replication  -- its name then; a process gets another one when it becomes a master
local prefix  -- KEYS[1]
local pools, rules, kept, open, paces, class_lists  -- read in this call, each by name
local set_asides  -- tenants that this call has set aside (turns.lua)

local CLOCKS = {}  -- key of the fleet's clock by prefix; beside the index, not in it: a rebuild goes on with the same time

-- latest_us: see `ask_time`.
local function begin_call(keys, args, latest_us)
  prefix, pools, rules, kept, open, paces, class_lists, set_asides = keys[1], {}, {}, {}, {}, {}, {}, 0
  local clock = CLOCKS[prefix]
  if not clock then
    clock = prefix:gsub('[^:]*:$', 'clock')
    CLOCKS[prefix] = clock
  end
  ask_time(clock, prefix, args[1], latest_us)
end
