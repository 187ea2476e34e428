-- Why: ends that are committed need no memory any more; a slot that was only waiting for that is free again.
-- Keys: KEYS[1] prefix
-- Args: clock, then per end: slot, job, attempt, epoch
-- Returns: wakes, flat: pool, host, count, …
-- include: gate
-- include: leases
-- include: wakes
local whole = gate.is_whole()
if not whole and not gate.is_filling() then return gate.refuse() end
local freed = {}
for i = 2, #ARGV, 4 do
  local attempt = ARGV[i + 2]
  local end_of = leases.read_settling(attempt)
  if end_of and end_of.slot == ARGV[i] and end_of.job == ARGV[i + 1] and end_of.epoch == tonumber(ARGV[i + 3]) then
    local slot = leases.forget_settling(attempt, end_of)
    if slot then
      local open, server = slots.idle(slot)
      if open then freed[#freed + 1] = { server.pool, server.host, 1 } end
    end
  end
end
return whole and wakes.for_freed(freed) or {}
