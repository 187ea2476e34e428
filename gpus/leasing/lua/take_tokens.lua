-- Why: token bucket of a tenant: a rate of submits per second, and a burst at once. It is not part of the index and
--   needs no generation. A missing key is a full bucket, so the key expires once the bucket is full again. Caller:
--   jobs/limits/submit_limits.py.
-- Keys: rate
-- Args:
--   tenant: text
--   tokens: number, wanted; 0 only reads
--   per_second: number, refill rate
--   burst: number, size of the bucket
--   request: text, id of the call; a repeated call returns the first answer
-- Returns: {1 taken or 0 not, whole tokens left, µs until the wanted tokens are available, µs until the bucket is full}
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
