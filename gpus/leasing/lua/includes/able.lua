-- Whether a server could run a model at all, now or once a slot of it is free. Servers that are off or drain are not in
-- `serving`, nor is one of a model that is paused.
-- include: kept
-- include: servers

local NOBODY = 0
local FAILING, SOMEBODY = 1, 2
local MOST_ASKED = 32

local function has_open_circuit(server) return server.opens > 0 and server.rests_until > now end

-- FAILING: its circuit is open, or that of every server that has it (of very many: of some by chance).
local function able_to_run(pool_name, model)
  if read_kept(pool_name).models[model] == 'kept' then return FAILING end
  local serving = Keys.serving(pool_name, model)
  local one = redis.call('SRANDMEMBER', serving)
  if not one then return NOBODY end
  if not has_open_circuit(read_server(one)) then return SOMEBODY end
  for _, name in ipairs(redis.call('SRANDMEMBER', serving, MOST_ASKED)) do
    if not has_open_circuit(read_server(name)) then return SOMEBODY end
  end
  return FAILING
end
