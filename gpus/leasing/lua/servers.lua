-- Why: lists all servers of the index, so that servers without a database row can be removed. Caller:
--   jobs/sweeps/mirror_registry.py, once a minute.
-- Keys: generation, rebuild, servers
-- Args: none
-- Returns: the names, including removed servers while a lease still holds one of their slots
-- include: keys
-- include: index
if not Index.is_open() then return Index.refuse() end
return redis.call('SMEMBERS', Keys.servers())
