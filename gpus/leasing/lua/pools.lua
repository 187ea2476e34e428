-- Why: the fill goes over all pools, a few in one step.
-- Keys: KEYS[1] prefix
-- Args: none
-- Returns: the names of the pools
-- include: gate
if not is_whole() then return refuse() end
return redis.call('SMEMBERS', Keys.pools())
