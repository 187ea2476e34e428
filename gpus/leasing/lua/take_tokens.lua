-- Why: token bucket of a tenant: so many submits per second in the long run, and a burst at once. It is no part of the
--   index and needs no generation. A bucket that is not there is full, so its key may expire once it is full again,
--   and nothing else has to remove it. Caller: jobs/limits/submit_limits.py.
-- Keys: rate
-- Args:
--   tenant: text
--   tokens: number, wanted; 0 only looks and changes nothing
--   per_second: number, tokens that come back
--   burst: number, tokens of a full bucket
--   request: text, its id
-- Returns: {1 taken or 0 not, whole tokens left, µs until as many as wanted are there, µs until it is full}; a bucket
--   that is asked twice by the same request answers what it answered
-- include: keys
-- include: call
local tenant, wanted, per_second, burst, request =
  args.tenant, args.tokens, args.per_second, args.burst, args.request

local tokens, at, last, answer = burst, Call.now, nil, nil
local packed = redis.call('GET', Keys.rate(tenant))
if packed then tokens, at, last, answer = cmsgpack.unpack(packed) end
if last == request then return answer end
tokens = math.min(burst, tokens + math.max(0, Call.now - at) * per_second / 1000000)
local taken = tokens >= wanted
if taken then tokens = tokens - wanted end
local function wait_for(level) return math.ceil(math.max(0, level - tokens) / per_second * 1000000) end
answer = { taken and 1 or 0, math.floor(tokens), taken and 0 or wait_for(wanted), wait_for(burst) }
if wanted == 0 then return answer end
redis.call('SET', Keys.rate(tenant), cmsgpack.pack(tokens, math.max(at, Call.now), request, answer),
  'PX', math.ceil(wait_for(burst) / 1000) + 1000)
return answer
