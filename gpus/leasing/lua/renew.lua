-- Why: a living holder keeps its leases and unconfirmed ends. A lease that the sweep made adoptable and nobody
--   took yet comes back. While the index is being rebuilt, what it does not know is announced to it.
-- Keys: KEYS[1] prefix
-- Args: clock, worker, lease µs, number of leases, number of ends, then per lease, per unconfirmed end and per follower:
--   pool, slot, job, attempt, epoch, model, tenant, priority, fence, leased at µs, estimate
-- Returns: the places (from 0) of those that are not held any more
-- include: gate
-- include: restore
-- include: adoptable
-- include: silence
local worker, lease_us, running, ending = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local FIRST, FIELDS = 6, 11

local whole = is_whole()
if not whole and not is_filling() then return refuse() end
note_renewal()

-- true: held; false: by somebody else; nil: unknown.
local function renew(slot_name, job, attempt, epoch)
  local slot = held_under(slot_name, job, attempt, epoch)
  if not slot then
    local followed = followed_under(slot_name, job, attempt, epoch)
    if followed then return followed.worker == worker end  -- the holder's renewal keeps it
    if not end_under(slot_name, job, attempt, epoch) then return nil end
  elseif not is_holder(slot, worker) then
    return false
  elseif slot.state == 'adoptable' then
    forget_rest(slot)
    unmake_adoptable(slot)
  elseif slot.worker == '' then
    pass_lease(slot, worker, epoch)
    save_slot(slot)
  end
  extend_lease(attempt, lease_us)
  if slot then charge_on(slot) end
  return true
end

local lost = {}
for i = 0, (#ARGV - FIRST + 1) / FIELDS - 1 do
  local first = FIRST + i * FIELDS
  local held = renew(ARGV[first + 1], ARGV[first + 2], ARGV[first + 3], tonumber(ARGV[first + 4]))
  if held == nil and not whole and i < running + ending then  -- a follower's job is pushed again, like all that wait
    local announce = i < running and restore_lease or restore_end
    held = announce(read_claim(ARGV, first, worker), lease_us)
  end
  if not held then lost[#lost + 1] = i end
end
return lost
