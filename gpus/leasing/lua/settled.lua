-- Why: ends that are committed need no memory any more; a slot that was only waiting for that is free again.
-- Keys: KEYS[1] prefix
-- Args: clock, then per end: slot, job, attempt, epoch
-- Returns: wakes, flat: pool, host, count, …
-- include: gate
-- include: ends
-- include: idle
-- include: wakes
local whole = is_whole()
if not whole and not is_filling() then return refuse() end
local freed = {}
for i = 2, #ARGV, 4 do
  local attempt = ARGV[i + 2]
  local found = end_under(ARGV[i], ARGV[i + 1], attempt, tonumber(ARGV[i + 3]))
  local slot = found and forget_end(attempt, found)
  if slot then
    local is_claimable, server = idle_slot(slot)
    if is_claimable then freed[#freed + 1] = { server.pool, server.host, 1 } end
  end
end
return whole and wakes_for(freed) or {}
