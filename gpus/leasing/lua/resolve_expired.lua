-- Why: carries out the sweep's decision on an expired lease or end, unless it has changed since the sweep read it.
--   Caller: jobs/sweeps/expired_leases.py.
-- Keys: broad, circuits, class_turn, classes, depth, estimates, expiry, free, generation, heads, held, kept, leases,
--   line, models, open, paid, parked, parked_depth, pool, rebuild, resting, running, server, servers, settling,
--   since, slot, states, tenants, ticking, turn, waits, warm
-- Args:
--   slot, job, attempt: text
--   epoch: number
--   verdict: text, adoptable, quarantined, free, or followed: the follower has begun, and its lease is examined next
-- Returns: 1 if the decision was carried out, else 0
-- include: keys
-- include: call
-- include: index
-- include: slots
-- include: availability
-- include: leases
-- include: running
-- include: assign
local name, job, attempt, epoch, verdict = args.slot, args.job, args.attempt, args.epoch, args.verdict

if not Index.is_whole() then return Index.refuse() end
local expires = tonumber(redis.call('ZSCORE', Keys.expiry(), attempt))
if not expires or Index.runs_out_in(expires, Call.redis_clock(Call.clock_us), Index.read_floor()) > 0 then return 0 end

local function shut_or_free(slot)
  if verdict == 'free' then Availability.idle_slot(slot) else Slots.set_state(slot, 'quarantined') end
end

local slot = Leases.slot_held_by_ref(name, job, attempt, epoch)
if slot then
  if verdict == 'adoptable' then
    Assign.drop_follower(slot)
    Availability.make_adoptable(slot)
  elseif verdict == 'followed' then
    if not slot.follower then return 0 end
    local follower, claimed_us = slot.follower, Leases.read_follower(slot).leased_us
    slot.follower = nil
    Assign.drop_lease(slot)
    slot.follower = follower
    Assign.begin_follower(slot, slot.worker, slot.host, claimed_us, 0)
  else
    Assign.drop_lease(slot)
    shut_or_free(slot)
  end
  return 1
end

local found = verdict ~= 'followed' and Leases.end_by_ref(name, job, attempt, epoch)
if not found then return 0 end
if verdict == 'adoptable' then
  -- the process died with the result: the run is polled again, unless its slot was leased on meanwhile
  slot = Slots.read_slot(name)
  if not slot or slot.state ~= 'settling' or slot.attempt ~= attempt then return 0 end
  redis.call('HDEL', Keys.settling(), attempt)
  redis.call('HSET', Keys.leases(), attempt, name)
  Running.run_begins(slot.tenant, attempt)
  Availability.make_adoptable(slot)
  return 1
end
slot = Leases.forget_end(attempt, found)
if slot then shut_or_free(slot) end
return 1
