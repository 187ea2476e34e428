-- Why: a server's own counts prove something only if no lease of it changed around the question.
-- Keys: KEYS[1] prefix
-- Args: clock, server
-- Returns: seconds since a lease of it last began or ended, or nil
-- include: gate
-- include: time
if not gate.is_open() then return gate.refuse() end
local changed = tonumber(redis.call('HGET', key.server(ARGV[2]), 'changed_us'))
return changed and tostring((now - changed) / 1000000) or nil
