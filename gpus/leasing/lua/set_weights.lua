-- Why: shares of GPU-seconds by tenant; who is not named keeps what he has, an unknown one has 1.
-- Keys: KEYS[1] prefix
-- Args: clock, then per tenant: name, weight
-- Returns: 1
-- include: gate
if not is_open() then return refuse() end
for i = 2, #ARGV, 2 do redis.call('HSET', key('weights'), ARGV[i], ARGV[i + 1]) end
return 1
