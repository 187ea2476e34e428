-- Why: counts waiting tickets by model, and the pool's slots by state.
-- Keys: depth, generation, kept, leases, parked_depth, pending, placed, pool, rebuild, states
-- Args:
--   pool: text
-- Returns: {{model, tickets, …}, {model, tickets of parked tenants, …}, {host, pending wakes, …}, {state, slots, …},
--   {model with an open circuit, open or half_open, …}, {near, elsewhere or gave_up, leases, …}}
-- include: keys
-- include: index
-- include: classes
local pool = args.pool

if not Index.is_open() then return Index.refuse() end
local counts = {}
for _, name in ipairs({ Keys.depth(pool), Keys.parked_depth(pool), Keys.pending(pool), Keys.states(pool) }) do
  counts[#counts + 1] = redis.call('HGETALL', name)
end
local circuits = {}
for model, state in pairs(Classes.read_kept(pool).models) do
  circuits[#circuits + 1] = model
  circuits[#circuits + 1] = state == 'kept' and 'open' or state
end
counts[#counts + 1] = circuits
counts[#counts + 1] = redis.call('HGETALL', Keys.placed(pool))
return counts
