-- Nothing runs out before the floor: after a gap in the sweep's own ticking living keepers get time to renew.
-- include: keys

local function expiry_floor() return tonumber(redis.call('HGET', key('ticking'), 'floor_us')) or 0 end
