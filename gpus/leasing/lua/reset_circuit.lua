-- Why: an operator closes a circuit: the server, or the model, is mended.
-- Keys: KEYS[1] prefix
-- Args:
--   kind: text, server or model
--   name, pool: text
-- Returns: {1 if it was not closed and without failures, else 0; wakes, flat: pool, host, count, …}
-- include: gate
-- include: circuit
-- include: arrivals
local kind, name, pool_name = args.kind, args.name, args.pool

local whole = is_whole()
if not whole and not is_filling() then return refuse() end
if kind == 'model' then
  local pool = load_pool(pool_name)
  if not read_circuit(pool, name) then return { 0, {} } end
  close_model(pool, name)
  save_pool(pool)
  local waiting = tonumber(redis.call('HGET', Keys.depth(pool_name), name)) or 0
  return { 1, whole and wakes_for_tickets(pool_name, read_classes(pool_name), { [name] = waiting }) or {} }
end
local server = read_server(name)
if not server or server.gone or (server.strikes == 0 and server.opens == 0) then return { 0, {} } end
local shown = close_server(server)
return { 1, whole and shown > 0 and wakes_for({ { server.pool, server.host, shown } }) or {} }
