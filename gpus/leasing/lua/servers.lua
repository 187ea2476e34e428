-- Why: the names of all servers that the index knows, so that those without a row are forgotten. Caller:
--   jobs/sweeps/mirror_registry.py, once a minute.
-- Keys: generation, rebuild, servers
-- Args: none
-- Returns: the names, also of servers that are gone while something still holds one of their slots
-- include: keys
-- include: index
if not Index.is_open() then return Index.refuse() end
return redis.call('SMEMBERS', Keys.servers())
