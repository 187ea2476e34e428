-- Why: what an index held before its layout was last in use must not be believed: it is wiped and rebuilt.
-- Keys: generation, rebuild; of any layout, for they mean the same in all
-- Args: none
-- Returns: 1
-- include: keys
redis.call('DEL', Keys.generation(), Keys.rebuild())
return 1
