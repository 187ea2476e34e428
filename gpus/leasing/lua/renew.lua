-- Why: extends a live worker's leases and uncommitted ends. A lease that the sweep made adoptable returns to its holder
--   if it was not adopted yet. During a rebuild the call restores leases that the index does not know. Caller:
--   gpus/leasing/keeper.py.
-- Keys: broad, circuits, class_turn, classes, depth, estimates, expiry, foretold, free, generation, heads, held, kept,
--   leases, line, marks, models, open, paid, parked, parked_depth, pool, pools, rebuild, running, server, servers,
--   settling, since, slot, states, tenants, ticking, turn, waits, warm
-- Args:
--   worker: text
--   lease_us: number
--   running, ending: number, how many of `held` are leases, and how many are uncommitted ends
--   held: records, leases, then ends, then followers
--     pool, slot, job, attempt: text
--     epoch: number
--     model, tenant: text
--     priority, fence: number
--     leased_us: number, since the epoch, in the fleet's time
--     estimate: number, GPU-seconds
-- Returns: the indexes (from 0) in `held` of those that the worker no longer holds
-- include: index
-- include: slots
-- include: availability
-- include: shares
-- include: leases
-- include: restore
local worker, lease_us, running, ending = args.worker, args.lease_us, args.running, args.ending

local whole = Index.is_whole()
if not whole and not Index.is_filling() then return Index.refuse() end
Index.record_renewal()

local names, renewed = {}, {}  -- of slots; attempts
for i, lease in ipairs(args.held) do names[i] = lease.slot end
-- One read and one write for all, except in a rebuild: restoring a lease may end another one between two rows.
local slots = whole and Slots.read_slots(names) or {}

-- true: held by the worker; false: held by another one; nil: unknown.
local function renew(slot_name, job, attempt, epoch)
  local slot = slots[slot_name] or Slots.read_slot(slot_name)
  if not Leases.is_held_by_ref(slot, job, attempt, epoch) then
    -- the holder's renewal extends its follower
    if Leases.follower_matches(slot, job, attempt, epoch) then return slot.worker == worker end
    if not Leases.end_by_ref(slot_name, job, attempt, epoch) then return nil end
    slot = nil
  elseif not Leases.is_holder(slot, worker) then
    return false
  elseif slot.state == 'adoptable' then
    Availability.reset_rest(slot)
    Availability.unmake_adoptable(slot)
  elseif slot.worker == '' then
    Leases.pass_lease(slot, worker, epoch)
    Slots.save_slot(slot)
  end
  if whole then renewed[#renewed + 1] = attempt else Leases.set_expiry(attempt, lease_us) end
  if slot then Shares.charge_on(slot) end
  return true
end

local lost = {}
for i, lease in ipairs(args.held) do
  local held = renew(lease.slot, lease.job, lease.attempt, lease.epoch)
  if held == nil and not whole and i <= running + ending then  -- a follower's job is pushed again, like a waiting one
    local announce = i <= running and Restore.restore_lease or Restore.restore_end
    lease.worker = worker
    held = announce(lease, lease_us)
  end
  if not held then lost[#lost + 1] = i - 1 end
end
Leases.set_expiries(renewed, lease_us)
return lost
