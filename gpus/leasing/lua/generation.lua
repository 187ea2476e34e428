-- Why: returns the index's generation if the index is whole on the present run of the Redis server.
-- Keys: generation
-- Args: none
-- Returns: {id, age in seconds, '1' if no lease could exist when it was begun, the fleet's time in µs}, or nil
-- include: keys
-- include: call
-- include: index
if not Index.is_whole() then return nil end
-- an older version that opened the index did not write this field
redis.call('HSETNX', Keys.generation(), 'replication', Call.replication)
local marker = redis.call('HMGET', Keys.generation(), 'id', 'opened_us', 'none_held')
return { marker[1], tostring((Call.now - marker[2]) / 1000000), marker[3] or '', Call.now }
