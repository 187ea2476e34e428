-- Why: whether the index is whole on the server's present run, and since when.
-- Keys: generation
-- Args: none
-- Returns: {id, age in seconds, '1' if no lease could exist when it was begun, the fleet's time in µs}, or nil
-- include: keys
-- include: call
-- include: index
if not Index.is_whole() then return nil end
-- the version before, which may have opened it, did not write that
redis.call('HSETNX', Keys.generation(), 'replication', Call.replication)
local marker = redis.call('HMGET', Keys.generation(), 'id', 'opened_us', 'none_held')
return { marker[1], tostring((Call.now - marker[2]) / 1000000), marker[3] or '', Call.now }
