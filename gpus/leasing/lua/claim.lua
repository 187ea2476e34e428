-- Why: leases a free slot together with the next ticket for it, or makes no change. No attempt is created while no slot
--   is free. Adoptable leases come first, because their GPU already works; after a failed adoption a lease is
--   skipped for a while. A second call with the same attempt returns the same lease. Caller: jobs/execution/claiming.py.
-- Keys: asked, broad, circuits, class_turn, classes, depth, estimates, expiry, forecast, foretold, free, generation,
--   heads, held, kept, leases, line, marks, models, open, paid, parked, parked_depth, pending, placed, pool, rebuild,
--   resting, running, server, servers, serving, since, slot, states, tenants, turn, waits, warm
-- Args:
--   pool, worker, attempt: text
--   host: text, '' unless the worker is pinned
--   lease_us: number
--   warm: text or nil, models that are warm in the worker's own process (',a,b,'); nil: the slot's last model
-- Returns: the lease as an array (lease_reply), or nil; or 'again': the work limit of one call was reached, and a second
--   call continues from there
-- include: keys
-- include: call
-- include: index
-- include: pools
-- include: slots
-- include: availability
-- include: classes
-- include: leases
-- include: pick
-- include: assign
-- include: wakes
local pool_name, worker, attempt, host = args.pool, args.worker, args.attempt, args.host
local lease_us, warm = args.lease_us, args.warm

local MAX_SLOTS_EXAMINED = 8  -- to find a free slot on another server than the avoided one
local RESTS_AT_ONCE = 8
local CLAIM_AGAIN = 'again'

if not Index.is_whole() then return Index.refuse() end
local known = Leases.find_lease(attempt)
if known then
  local is_ours = known.state == 'leased' and known.worker == worker
  return is_ours and Leases.lease_reply(known, known.adopter == attempt) or nil
end

Wakes.use_wake(pool_name, host)  -- must come first: any ticket pushed after this sends a new wake
Availability.end_rests(RESTS_AT_ONCE)

local waiting = redis.call('ZRANGEBYSCORE', Keys.free(pool_name, 'adoptable', host), '-inf', Call.now, 'LIMIT', 0, 1)[1]
if waiting then
  local slot = Slots.read_slot(waiting)
  Leases.pass_lease(slot, worker, slot.epoch, attempt)
  Availability.unmake_adoptable(slot)
  Leases.set_expiry(slot.attempt, lease_us)
  return Leases.lease_reply(slot, true)
end

local pool = Pools.load_pool(pool_name)

local waits_for_near = {}  -- classes whose first ticket waits for its near server, for which no other ticket is there

-- The lease, or nil; and true if the search must be repeated: it met a stale ticket (`lease_ticket`), or one that waits for
-- its near server.
local function claim_free()
  -- The classes with a free slot for this host, and the best ticket for any of them.
  local open, best, best_place = {}, nil, nil
  for _, class in ipairs(Classes.read_classes(pool_name)) do
    if not waits_for_near[class[1]] and redis.call('EXISTS', Keys.free(pool_name, class[1], host)) == 1 then
      open[#open + 1] = class
      local ticket, place = Pick.best_ticket(pool, class)
      if ticket and (not best or place < best_place or (place == best_place and Pick.precedes(ticket, best))) then
        best, best_place = ticket, place
      end
    end
  end
  if not best or Pick.reached_limit() then return nil end

  local avoided = Pick.avoided_server(pool, best)
  local function first_elsewhere(list)
    for _, name in ipairs(redis.call('ZRANGE', list, 0, avoided and MAX_SLOTS_EXAMINED - 1 or 0)) do
      if Slots.split_slot(name) ~= avoided then return name end
    end
    return nil
  end

  local near = pool.marked > 0 and Pick.near_server(pool, best)
  if near then
    local name, its_host = Pick.free_slot_of(pool_name, near, best.model)
    if name and its_host == host then
      local slot, server = Slots.read_with_server(name)
      return Assign.lease_ticket(slot, server, pool, best, attempt, worker, lease_us)
    end
  end

  -- Leases the slot to the ticket, or to another one that is better placed there. is_warm: for the ticket's model.
  local function lease_slot(name, class, is_warm)
    local slot, server = Slots.read_with_server(name)
    local ticket = best
    if near then
      ticket = Pick.best_ticket(pool, class, server.name)
      if not ticket then
        waits_for_near[class[1]] = true
        return nil, true
      end
      is_warm = is_warm and ticket.member == best.member
    end
    if not is_warm then ticket = Pick.prefer_warm(pool, ticket, warm or Pick.last_model(slot), class, server.name) end
    return Assign.lease_ticket(slot, server, pool, ticket, attempt, worker, lease_us)
  end

  -- A slot that is warm for the ticket, else the longest free slot of the most specialised class. A worker that reports
  -- its warm models has them warm for all its slots.
  local fitting = {}
  for _, class in ipairs(open) do
    if Classes.serves(class[2], best.model) then
      fitting[#fitting + 1] = class
      local name = not warm and first_elsewhere(Keys.warm(pool_name, class[1], best.model, host))
      if name then return lease_slot(name, class, true) end
    end
  end
  for _, class in ipairs(fitting) do
    local name = first_elsewhere(Keys.free(pool_name, class[1], host))
    if name then return lease_slot(name, class, false) end
  end

  -- Only the avoided server is free: its slot goes to the next ticket.
  local name = redis.call('ZRANGE', Keys.free(pool_name, fitting[1][1], host), 0, 0)[1]
  local slot, server = Slots.read_with_server(name)
  local ticket = Pick.best_ticket(pool, fitting[1], server.name)
  if ticket then return Assign.lease_ticket(slot, server, pool, ticket, attempt, worker, lease_us) end
  Pools.save_pool(pool)
  return nil
end

local lease, had_stale_ticket
repeat lease, had_stale_ticket = claim_free() until not had_stale_ticket
if lease then return lease end
if Pick.reached_limit() then return CLAIM_AGAIN end
return nil
