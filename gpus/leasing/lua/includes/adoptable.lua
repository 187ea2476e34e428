-- A lease whose holder let go of it or vanished, but whose run goes on: whoever claims next takes it up.
-- include: keys
-- include: lists

local function make_adoptable(slot)
  redis.call('ZREM', key('expiry'), slot.attempt)
  set_state(slot, 'adoptable')
  show_slot(slot, read_server((split_slot(slot.name))))
end

-- It has a holder again; the caller extends the lease.
local function unmake_adoptable(slot)
  hide_slot(slot, read_server((split_slot(slot.name))))
  set_state(slot, 'leased')
end
