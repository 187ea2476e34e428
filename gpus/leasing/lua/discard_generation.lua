-- Why: an index that was not in use for a while may be wrong: it is marked so that it is wiped and rebuilt.
-- Keys: generation, rebuild; of any layout, for they mean the same in all
-- Args: none
-- Returns: 1
-- include: keys
redis.call('DEL', Keys.generation(), Keys.rebuild())
return 1
