-- Why: the index is whole: the marker names the run of the server that holds it, and leasing begins.
-- Keys: KEYS[1] prefix
-- Args: clock, owner, the new generation's id
-- Returns: the generation's id
-- include: gate
local owner, id = ARGV[2], ARGV[3]

local marker = redis.call('HMGET', key('generation'), 'run_id', 'owner', 'id')
if marker[1] == run_id and marker[2] == owner then return marker[3] end
local rebuild = redis.call('HMGET', key('rebuild'), 'run_id', 'owner', 'phase')
if rebuild[1] ~= run_id or rebuild[2] ~= owner then
  return redis.error_reply('UNAVAILABLE somebody else rebuilds the index')
end
if rebuild[3] ~= 'filling' then return redis.error_reply('UNAVAILABLE the old index is not wiped yet') end
redis.call('HSET', key('generation'), 'id', id, 'run_id', run_id, 'owner', owner, 'opened_us', now)
redis.call('DEL', key('rebuild'))
return id
