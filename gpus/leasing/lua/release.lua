-- Why: ends a lease, corrects its tenant's charge and, if asked, gives the slot to the next ticket in the same
--   step, so that a slot never stands idle for a round trip. Where its follower has begun already, the slot is the
--   follower's, and the next ticket follows that one. Sent twice it answers the same.
-- Keys: KEYS[1] prefix
-- Args: clock, slot, job, attempt, epoch, mode (settle, suspect), worker, real GPU-seconds or '', next attempt
--   or '', rest µs or '', lease µs, verdict on server and model (circuit.lua), failures that open a circuit, its first
--   rest µs, its longest rest µs, models that are warm as in claim, then, if it has begun, the follower as in renew.
--   A next attempt that is the follower's begins it, if the slot may go on
-- Returns: the next lease as an array (lease_reply), or nil
-- include: gate
-- include: follow
-- include: settle
-- include: circuit
-- include: restore
local name, job, attempt, epoch, mode, worker = ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5]), ARGV[6], ARGV[7]
local seconds, next_attempt, rest_us = tonumber(ARGV[8]), ARGV[9], tonumber(ARGV[10])
local lease_us, verdict = tonumber(ARGV[11]), ARGV[12]
local rules = { failures = tonumber(ARGV[13]), rest = tonumber(ARGV[14]), cap = tonumber(ARGV[15]) }
local warm = ARGV[16] ~= '' and ARGV[16] or nil
local BEGUN = 17

local whole = is_whole()
if not whole and not is_filling() then return refuse() end
local slot = held_under(name, job, attempt, epoch)
if not slot or not is_holder(slot, worker) then
  if next_attempt == '' then return nil end
  local given = find_lease(next_attempt)
  if given then return given.name == name and lease_reply(given, false) or nil end
  given = read_slot(name)
  local follower = given and read_follower(given)
  local is_ours = follower and follower.attempt == next_attempt and given.worker == worker
  return is_ours and lease_reply(follower, false) or nil
end
local server_name, index = split_slot(name)
local server = read_server(server_name)
hide_slot(slot, server)

local pool = load_pool(slot.pool)
local real = correct_charge(pool, slot, seconds)
forget_lease(slot)
run_ends(slot.tenant, slot.attempt)
slot.worker = worker
settle(slot)
if rest_us then rest_server(server, now + rest_us) end
judge(server, slot, pool, slot.model, attempt, job, verdict, rules)
if mode == 'suspect' then
  drop_follower(slot)
  extend_lease(attempt, lease_us)
  save_pool(pool)
  set_state(slot, 'quarantined')
  return nil
end
if real > 0 then learn_seconds(slot.model, slot.tenant, real) end

local follower = read_follower(slot)
if ARGV[BEGUN] then
  if follower and follower.attempt == ARGV[BEGUN + 3] then
    begin_follower(slot, worker, server.host, now, lease_us, attempt)
    save_pool(pool)
  else  -- the index was made anew since, and its worker began it before it could know
    drop_follower(slot)
    extend_lease(attempt, lease_us)
    save_pool(pool)
    set_state(slot, 'settling')
    restore_lease(read_claim(ARGV, BEGUN, worker), lease_us)
    slot = read_slot(name)
  end
  return whole and next_attempt ~= '' and follow(slot, server, index, pool, next_attempt, warm) or nil
end

if next_attempt ~= '' and whole and may_go_on(slot, server, index) then
  if follower and follower.attempt == next_attempt and not is_follower_held_back(pool, follower) then
    begin_follower(slot, worker, server.host, now, lease_us, attempt)
    save_pool(pool)
    return lease_reply(slot, false)
  end
  drop_follower(slot)
  local lease = take_next(slot, server, pool, next_attempt, warm)
  if lease then return hold(slot, server, lease, worker, lease_us, attempt) end
end
drop_follower(slot)
extend_lease(attempt, lease_us)
save_pool(pool)
set_state(slot, 'settling')
return nil
