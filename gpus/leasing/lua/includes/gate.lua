-- Whether the index may be trusted. A marker that names another run than the one of this process was copied here by a
-- restart or a failover, which may have lost the last writes; one that names another replication, by a failover away
-- from this process and back. A refusal is an error reply that the store turns into
-- LeasingUnavailable.
-- include: keys

-- made: run id and replication, the latter missing where a version wrote it that did not know of it.
local function is_of_this_run(made) return made[1] == run_id and (not made[2] or made[2] == replication) end

local function is_whole()
  return is_of_this_run(redis.call('HMGET', Keys.generation(), 'run_id', 'replication'))
end

-- Wiped, and being filled from the database: everything works except giving out leases.
local function is_filling()
  local rebuild = redis.call('HMGET', Keys.rebuild(), 'run_id', 'replication', 'phase')
  return is_of_this_run(rebuild) and rebuild[3] == 'filling'
end

local function is_open() return is_whole() or is_filling() end

local function refuse()
  if redis.call('EXISTS', Keys.rebuild()) == 1 then
    return redis.error_reply('UNAVAILABLE the index is being rebuilt')
  end
  return redis.error_reply('UNAVAILABLE no generation: the index must be rebuilt from the database')
end
