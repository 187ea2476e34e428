-- Why: the fill goes over all pools, a few in one step.
-- Keys: KEYS[1] prefix
-- Args: clock
-- Returns: the names of the pools
-- include: gate
if not gate.is_whole() then return gate.refuse() end
return redis.call('SMEMBERS', key.pools)
