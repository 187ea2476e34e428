-- Why: stores the heartbeat of a pinned worker: its state and its GPU's telemetry. Needs no index.
--   A reading is stored twice: as it is, for an hour, and in the summary of its five minutes, for a day. A list's head is
--   its newest entry.
-- Keys: beats, summaries, telemetry
-- Args:
--   server: text
--   said: text, JSON: the worker's report on itself
--   telemetry: text or nil, JSON: one telemetry reading
--   kept: number, how many readings the history keeps
--   warm: text, the models that the reading names as loaded, each with a comma behind
--   summary_us: number, length of a summary
--   summaries: number, how many are kept; 0: none
--   measures: records, numbers of the reading
--     name: text
--     value: number
-- Returns: 1
-- include: keys
-- include: call
local server, telemetry = args.server, args.telemetry
redis.call('HSET', Keys.beats(), server, cmsgpack.pack(Call.now, args.said))
if not telemetry then return 1 end
redis.call('LPUSH', Keys.telemetry(server), cmsgpack.pack(Call.now, telemetry))
redis.call('LTRIM', Keys.telemetry(server), 0, args.kept - 1)
if args.summaries == 0 then return redis.call('DEL', Keys.summaries(server)) and 1 end

-- A summary is JSON, so that a day is read without any work here: begin / length, readings, {count, sum, min, max} by
-- measure, the last reading's models, and loads by model. A model that the reading before did not name is a load.
local number = math.floor(Call.now / args.summary_us)
local head = redis.call('LINDEX', Keys.summaries(server), 0)
local is_known, last = pcall(cjson.decode, head or '')
if not is_known then last = nil end
local readings, measures, loads = 0, {}, {}
if last and last[1] == number then readings, measures, loads = last[2], last[3], last[5] end
if last then
  local named = ',' .. last[4]
  for model in args.warm:gmatch('[^,]+') do
    if not named:find(',' .. model .. ',', 1, true) then loads[model] = (loads[model] or 0) + 1 end
  end
end
for _, measure in ipairs(args.measures) do
  local value, of = measure.value, measures[measure.name]
  measures[measure.name] = of
    and { of[1] + 1, of[2] + value, math.min(of[3], value), math.max(of[4], value) }
    or { 1, value, value, value }
end
local summary = cjson.encode({ number, readings + 1, measures, args.warm, loads })
if last and last[1] == number then
  redis.call('LSET', Keys.summaries(server), 0, summary)
else
  redis.call('LPUSH', Keys.summaries(server), summary)
  redis.call('LTRIM', Keys.summaries(server), 0, args.summaries - 1)
end
return 1
