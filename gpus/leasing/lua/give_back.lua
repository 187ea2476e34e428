-- Why: nothing ran under this lease (its ticket was stale): the slot is free at once, nothing needs a commit. Of a
--   follower: its slot is the holder's as before.
-- Keys: KEYS[1] prefix
-- Args:
--   slot, job, attempt: text
--   epoch: number
--   worker: text
--   seconds: number, real GPU-seconds
--   rest_us: number or nil, the server rests so long
-- Returns: 1 if it was the worker's, else 0
-- include: gate
-- include: drop
-- include: idle
-- include: rest
local name, job, attempt, epoch, worker = args.slot, args.job, args.attempt, args.epoch, args.worker
local seconds, rest_us = args.seconds, args.rest_us

if not is_open() then return refuse() end
local slot = held_under(name, job, attempt, epoch)
if not slot then
  slot = followed_under(name, job, attempt, epoch)
  if not slot or slot.worker ~= worker then return 0 end
  drop_follower(slot)
  save_slot(slot)
  if rest_us then rest_server(read_server((split_slot(name))), now + rest_us) end
  return 1
end
if not is_holder(slot, worker) then return 0 end
local server = read_server((split_slot(name)))
hide_slot(slot, server)
drop_lease(slot, seconds)
if rest_us then rest_server(server, now + rest_us) end
idle_slot(slot)
return 1
