-- Why: shows whether an index is closed and whether processes still use it, including versions that write no heartbeat
--   into the database. Caller: gpus/registry/processes.py.
-- Keys: expiry, rebuild, ticking; of any layout, as their meaning never changes
-- Args:
--   limit: number, maximum count of attempts
-- Returns: {owner that closed it, or '', µs since a sweep last listed expired leases, or '', attempt, …}: the attempts
--   whose lease or uncommitted end was renewed recently
-- include: keys
-- include: call
local limit = args.limit
local NEVER_SILENT_US = 9000000000000000

local rebuild = redis.call('HMGET', Keys.rebuild(), 'run_id', 'owner', 'at_us')
local is_closed = rebuild[1] == Call.run_id and tonumber(rebuild[3]) >= NEVER_SILENT_US
local looked_us = redis.call('HGET', Keys.ticking(), 'at_us')
local reply = { is_closed and rebuild[2] or '', looked_us and tostring(Call.now - looked_us) or '' }
for _, attempt in ipairs(redis.call('ZRANGEBYSCORE', Keys.expiry(), string.format('(%.0f', Call.now), '+inf', 'LIMIT', 0, limit)) do
  reply[#reply + 1] = attempt
end
return reply
