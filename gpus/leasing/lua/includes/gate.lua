-- Whether the index may be trusted. A marker that names another run than the one of this process was copied here by a
-- restart or a failover, which may have lost the last writes. A refusal is an error reply that the store turns into
-- LeasingUnavailable.
-- include: keys

local function is_whole() return redis.call('HGET', key('generation'), 'run_id') == run_id end

-- Wiped, and being filled from the database: everything works except giving out leases.
local function is_filling()
  local rebuild = redis.call('HMGET', key('rebuild'), 'run_id', 'phase')
  return rebuild[1] == run_id and rebuild[2] == 'filling'
end

local function is_open() return is_whole() or is_filling() end

local function refuse()
  if redis.call('EXISTS', key('rebuild')) == 1 then
    return redis.error_reply('UNAVAILABLE the index is being rebuilt')
  end
  return redis.error_reply('UNAVAILABLE no generation: the index must be rebuilt from the database')
end
