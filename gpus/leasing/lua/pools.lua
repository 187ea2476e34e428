-- Why: lists all pools, for the fill, which handles a few of them per call.
-- Keys: generation, pools, rebuild
-- Args: none
-- Returns: the names of the pools
-- include: keys
-- include: index
if not Index.is_whole() then return Index.refuse() end
return redis.call('SMEMBERS', Keys.pools())
