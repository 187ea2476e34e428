-- Why: ends a lease, corrects its tenant's charge and, with `next_attempt`, leases the slot to the next ticket in the
--   same step, so that no slot is idle for a round trip. If the follower (prefetched job) has begun already, it gets the
--   slot, and the next ticket becomes its follower. A second call returns the same. Caller: jobs/execution/completion.py.
-- Keys: broad, circuits, class_turn, classes, depth, estimates, expiry, forecast, foretold, free, generation, heads,
--   held, kept, leases, line, marks, models, open, paid, parked, parked_depth, placed, pool, pools, rebuild, resting,
--   running, server, servers, serving, settling, since, slot, states, tenants, turn, waits, warm
-- Args:
--   slot, job, attempt: text
--   epoch: number
--   mode: text, ended (clean end, to be committed), or suspect: the GPU may still be busy
--   worker: text
--   seconds: number or nil, real GPU-seconds, nil: the time held
--   next_attempt: text or nil, claims the next job for the slot; if it is the follower's attempt, begins the follower
--   rest_us: number or nil, how long the server rests (gets no lease)
--   lease_us: number
--   verdict: text, evidence of this end about server and model, see circuit.lua
--   failures: number, in a row that open a circuit
--   first_rest_us, longest_rest_us: number, how long an open circuit rests
--   warm: text or nil, models that are warm in the worker's own process (',a,b,'); nil: the slot's last model
--   begun: record or nil, the follower, if its worker has begun it already
--     pool, slot, job, attempt: text
--     epoch: number
--     model, tenant: text
--     priority, fence: number
--     leased_us: number, since the epoch, in the fleet's time
--     estimate: number, GPU-seconds
-- Returns: the next lease as an array (lease_reply), or nil
-- include: call
-- include: index
-- include: pools
-- include: slots
-- include: availability
-- include: shares
-- include: leases
-- include: running
-- include: assign
-- include: circuit
-- include: restore
local name, job, attempt, epoch, mode, worker = args.slot, args.job, args.attempt, args.epoch, args.mode, args.worker
local seconds, next_attempt, rest_us, lease_us = args.seconds, args.next_attempt, args.rest_us, args.lease_us
local rules = { failures = args.failures, rest = args.first_rest_us, cap = args.longest_rest_us }
local warm = args.warm
local begun = args.begun

local whole = Index.is_whole()
if not whole and not Index.is_filling() then return Index.refuse() end
local slot, server, slot_number = Slots.read_with_server(name)
if not Leases.is_held_by_ref(slot, job, attempt, epoch) or not Leases.is_holder(slot, worker) then
  -- Repeated call: return what the first one granted.
  if not next_attempt then return nil end
  local given = Leases.find_lease(next_attempt)
  if given then return given.name == name and Leases.lease_reply(given, false) or nil end
  local follower = slot and Leases.read_follower(slot)
  local is_ours = follower and follower.attempt == next_attempt and slot.worker == worker
  return is_ours and Leases.lease_reply(follower, false) or nil
end
Availability.hide_slot(slot, server)

local pool = Pools.load_pool(slot.pool)
local real = Shares.correct_charge(pool, slot, seconds)
Leases.forget_lease(slot)
Running.run_ends(slot.tenant, slot.attempt)
slot.worker = worker
Leases.store_uncommitted_end(slot)
if rest_us then Availability.rest_server(server, Call.now + rest_us) end
Circuit.apply_verdict(server, slot, pool, slot.model, attempt, job, args.verdict, rules)
if mode == 'suspect' then
  Assign.drop_follower(slot)
  Leases.set_expiry(attempt, lease_us)
  Pools.save_pool(pool)
  Slots.set_state(slot, 'quarantined')
  return nil
end
if real > 0 then Shares.learn_seconds(slot.model, slot.tenant, real) end

local follower = Leases.read_follower(slot)
if begun then
  if follower and follower.attempt == begun.attempt then
    Assign.begin_follower(slot, worker, server.host, Call.now, lease_us, attempt)
    Pools.save_pool(pool)
  else  -- the index was rebuilt without this follower; its worker has already sent it
    Assign.drop_follower(slot)
    Leases.set_expiry(attempt, lease_us)
    Pools.save_pool(pool)
    Slots.set_state(slot, 'settling')
    begun.worker = worker
    Restore.restore_lease(begun, lease_us)
    slot = Slots.read_slot(name)
  end
  return whole and next_attempt and Assign.claim_follower(slot, server, slot_number, pool, next_attempt, warm) or nil
end

if next_attempt and whole and Availability.may_continue(slot, server, slot_number) then
  if follower and follower.attempt == next_attempt and not Assign.is_follower_held_back(pool, follower) then
    Assign.begin_follower(slot, worker, server.host, Call.now, lease_us, attempt)
    Pools.save_pool(pool)
    return Leases.lease_reply(slot, false)
  end
  Assign.drop_follower(slot)
  local lease = Assign.take_next(slot, server, pool, next_attempt, warm)
  if lease then return Assign.occupy(slot, server, lease, worker, lease_us, attempt) end
end
Assign.drop_follower(slot)
Leases.set_expiry(attempt, lease_us)
Pools.save_pool(pool)
Slots.set_state(slot, 'settling')
return nil
