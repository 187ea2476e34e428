-- A lease whose holder let go of it or vanished, but whose run goes on: whoever claims next takes it up.
-- include: keys
-- include: lists

-- The slot must not be listed yet.
local function make_adoptable(slot)
  redis.call('ZREM', Keys.expiry(), slot.attempt)
  set_state(slot, 'adoptable')
  show_slot(slot, read_server((split_slot(slot.name))))
end

-- It has a holder again; the caller extends the lease.
local function unmake_adoptable(slot)
  hide_slot(slot, read_server((split_slot(slot.name))))
  set_state(slot, 'leased')
end

-- Somebody could not adopt it: it rests, each time twice as long, so that claims go on to what they can run.
local function rest_lease(slot, first_us, most_us)
  slot.rest_us = math.min(slot.rest_us and 2 * slot.rest_us or first_us, most_us)
  slot.rests_until = now + slot.rest_us
end

-- It is driven again: the next failure rests it as the first one did.
local function forget_rest(slot) slot.rest_us, slot.rests_until = nil, nil end
