-- Why: while a short job runs, its worker claims what its slot runs next, so that it need not ask in between. Asked again
--   with the same attempt it answers the same.
-- Keys: KEYS[1] prefix
-- Args:
--   slot, job, attempt: text
--   epoch: number
--   worker, next_attempt: text
--   warm: text or nil, models that are warm in the worker's own process (',a,b,'); nil: the slot remembers the last one
-- Returns: the follower as an array (lease_reply), or nil
-- include: gate
-- include: follow
local name, job, attempt, epoch, worker = args.slot, args.job, args.attempt, args.epoch, args.worker
local next_attempt, warm = args.next_attempt, args.warm

if not is_whole() then return refuse() end
local slot = held_under(name, job, attempt, epoch)
if not slot or slot.state ~= 'leased' or not is_holder(slot, worker) then return nil end
local known = read_follower(slot)
if known then return known.attempt == next_attempt and lease_reply(known, false) or nil end
local server_name, index = split_slot(name)
return follow(slot, read_server(server_name), index, load_pool(slot.pool), next_attempt, warm)
