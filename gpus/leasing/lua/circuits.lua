-- Why: shows the circuit breakers of a pool's models and of the named servers to operators.
-- Keys: circuits, generation, kept, pool, rebuild, server
-- Args:
--   pool: text
--   servers: texts, each costs one read
-- Returns: {{model, state, failures in a row, times opened in a row, seconds left, …}, {server, the same, …}}; states:
--   closed (with failures), open, half_open. Closed circuits without failures are left out.
-- include: keys
-- include: call
-- include: index
-- include: pools
-- include: slots
-- include: classes
local pool_name = args.pool

if not Index.is_open() then return Index.refuse() end
local pool, models, servers = Pools.load_pool(pool_name), {}, {}

local function view(list, name, strikes, opens, until_us)
  local left = math.max(0, until_us - Call.now) / 1000000
  local state = opens == 0 and 'closed' or left > 0 and 'open' or 'half_open'
  for _, value in ipairs({ name, state, strikes, opens, tostring(left) }) do list[#list + 1] = value end
end

for _, model in ipairs(redis.call('HKEYS', Keys.circuits(pool_name))) do
  local circuit = Classes.read_circuit(pool, model)
  view(models, model, circuit.strikes, circuit.opens, tonumber(redis.call('HGET', Keys.kept(pool_name), model)) or 0)
end
for _, name in ipairs(args.servers) do
  local server = Slots.read_server(name)
  if server and not server.gone and (server.strikes > 0 or server.opens > 0) then
    view(servers, server.name, server.strikes, server.opens, server.rests_until)
  end
end
return { models, servers }
