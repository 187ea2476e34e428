-- Why: marks an index for wiping and rebuilding, because it was not in use for a while and may be stale.
-- Keys: generation, rebuild; of any layout, as their meaning never changes
-- Args: none
-- Returns: 1
-- include: keys
redis.call('DEL', Keys.generation(), Keys.rebuild())
return 1
