-- Why: predicts whether a job submitted now would start at once, for clients that prefer a refusal to waiting. Caller:
--   jobs/submission/capacity.py.
-- Keys: circuits, classes, depth, generation, kept, leases, open, parked, pool, rebuild, running, server, serving,
--   tenants
-- Args:
--   pool, tenant: text
--   models: texts
-- Returns: {{per model: free slots that no waiting ticket could take; 0 if the tenant is parked or at its limit}, how
--   many more jobs of any model the tenant may run, -1: no limit, {model that no server can run because circuits are
--   open, …}}
-- include: keys
-- include: index
-- include: pools
-- include: classes
-- include: line
-- include: wakes
local pool_name, tenant = args.pool, args.tenant

if not Index.is_whole() then return Index.refuse() end
local pool, spare, failing = Pools.load_pool(pool_name), {}, {}
-- a tenant at its limit without waiting jobs here is marked as parked only with its next push
local parked = Line.is_parked(pool, tenant) or Pools.is_at_max_running(tenant)
for _, model in ipairs(parked and {} or args.models) do Classes.offer_trial(pool, model, tenant) end
local classes = Classes.read_classes(pool_name)

local function free_of(class)
  local flat, free = redis.call('ZRANGE', Keys.open(pool_name, class), 0, Wakes.WAKE_HOSTS - 1, 'WITHSCORES'), 0
  for i = 2, #flat, 2 do free = free + tonumber(flat[i]) end
  return free
end

for _, model in ipairs(args.models) do
  local count = 0
  for _, class in ipairs(classes) do
    if not parked and Classes.serves(class[2], model) then
      count = count + math.max(0, free_of(class[1]) - Wakes.waiting_for(pool_name, class[2]))
    end
  end
  spare[#spare + 1] = count
  if count == 0 and Classes.able_to_run(pool_name, model) == Classes.FAILING then failing[#failing + 1] = model end
end
local max_running = Pools.rules_of(tenant).max_running
local more = max_running and math.max(0, max_running - redis.call('SCARD', Keys.running(tenant))) or -1
return { spare, more, failing }
