-- Why: closes a circuit for an operator who has repaired the server or the model.
-- Keys: broad, circuits, class_turn, classes, depth, free, generation, kept, leases, open, pending, pool, rebuild,
--   resting, server, servers, slot, turn, warm
-- Args:
--   kind: text, server or model
--   name, pool: text
-- Returns: {1 if it was open or had failures, else 0; wakes, flat: pool, host, count, …}
-- include: keys
-- include: index
-- include: pools
-- include: slots
-- include: classes
-- include: wakes
-- include: circuit
local kind, name, pool_name = args.kind, args.name, args.pool

local whole = Index.is_whole()
if not whole and not Index.is_filling() then return Index.refuse() end
if kind == 'model' then
  local pool = Pools.load_pool(pool_name)
  if not Classes.read_circuit(pool, name) then return { 0, {} } end
  Circuit.close_model(pool, name)
  Pools.save_pool(pool)
  local waiting = tonumber(redis.call('HGET', Keys.depth(pool_name), name)) or 0
  return { 1, whole and Wakes.wakes_for_tickets(pool_name, Classes.read_classes(pool_name), { [name] = waiting }) or {} }
end
local server = Slots.read_server(name)
if not server or server.gone or (server.strikes == 0 and server.opens == 0) then return { 0, {} } end
local shown = Circuit.close_server(server)
return { 1, whole and shown > 0 and Wakes.wakes_for({ { server.pool, server.host, shown } }) or {} }
