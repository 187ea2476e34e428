-- Circuit breakers: a server, or a model, that fails again and again by its own fault rests, twice as long each time, up
-- to a cap; then it is half open and exactly one job tries: if that ends well the circuit closes. A verdict is what an
-- attempt's end says: 'well', 'server', 'model', 'either', 'answered' (bad input), or '' (nothing: busy, cancelled,
-- interrupted). A server that is tried needs no success: 'answered' and 'model' say that it is there and works.
-- 'either' counts for the model first, and for the server only while the model's circuit is closed.
-- rules: {failures, rest µs, cap µs}; failures 0: no circuit ever opens. Ends of attempts that began before a circuit
-- opened say nothing about it. An open server rests (rest.lua); an open model is kept back (kept.lua).
-- include: kept
-- include: rest
-- include: turns

local function rest_us(rules, opens) return math.min(rules.rest * 2 ^ (opens - 1), rules.cap) end

local function close_server(server)
  local was_open = server.opens > 0
  server.strikes, server.struck, server.opens, server.probe = 0, '', 0, nil
  if was_open then
    server.rests_until = 0
    redis.call('ZREM', key('resting'), server.name)
  end
  save_server(server)
  return was_open and show_free_slots(server) or 0
end

local function open_server(server, rules)
  server.strikes, server.struck, server.opens, server.probe = 0, '', server.opens + 1, nil
  rest_server(server, now + rest_us(rules, server.opens))
end

local function strike_server(server, job, rules)
  server.strikes, server.struck = server.strikes + 1, job
  if server.strikes >= rules.failures then open_server(server, rules) else save_server(server) end
end

local CLOSES = { well = true, answered = true, model = true }  -- a server that is half open

-- slot: in which the attempt ended.
local function judge_server(server, slot, job, verdict, rules)
  if server.gone then return end
  local is_blamed = verdict == 'server' or verdict == 'either'
  if server.opens > 0 then
    if slot.name ~= server.probe then return end
    if CLOSES[verdict] then close_server(server) end
    if is_blamed then open_server(server, rules) end
  elseif verdict == 'well' then
    if server.strikes > 0 then close_server(server) end
  elseif verdict == 'server' or (is_blamed and server.struck ~= job) then  -- one job's input may break any server
    strike_server(server, job, rules)
  end
end

-- The caller saves the pool: it counts the records.
-- nil, or {strikes, struck, servers ',a,b,' that it failed on, opens}.
local function read_circuit(pool, model)
  local packed = pool.failing > 0 and redis.call('HGET', key('circuits', pool.name), model)
  if not packed then return nil end
  local strikes, struck, servers, opens = cmsgpack.unpack(packed)
  return { strikes = strikes, struck = struck, servers = servers, opens = opens }
end

local function save_circuit(pool, model, circuit)
  pool.failing = pool.failing + redis.call('HSET', key('circuits', pool.name), model,
    cmsgpack.pack(circuit.strikes, circuit.struck, circuit.servers, circuit.opens))
end

local function close_model(pool, model)
  pool.failing = pool.failing - redis.call('HDEL', key('circuits', pool.name), model)
  local was_open = redis.call('HDEL', key('kept', pool.name), model) == 1
  forget_kept(pool.name)
  if was_open then end_aside(pool, model) end
end

local function open_model(pool, model, circuit, rules)
  circuit.strikes, circuit.struck, circuit.opens = 0, '', circuit.opens + 1
  save_circuit(pool, model, circuit)
  redis.call('HSET', key('kept', pool.name), model, string.format('%.0f', now + rest_us(rules, circuit.opens)))
  forget_kept(pool.name)
end

-- It was the model: the failures of the servers that ran it are forgotten, also if they opened one of them (its own
-- tries failed if it opened twice). server: the one that the caller holds.
local function forgive(server, names)
  for name in names:gmatch('[^,]+') do
    local other = name == server.name and server or read_server(name)
    if other and other.opens <= 1 and other.strikes + other.opens > 0 then close_server(other) end
  end
end

-- As many servers as it takes to say that it is not the server.
local function is_on_several(pool, model, servers)
  local _, commas = servers:gsub(',', '')
  return commas - 1 >= math.min(2, redis.call('SCARD', key('serving', pool.name, model)))
end

-- True if its circuit is open: the server is not to blame.
local function judge_model(pool, model, server, attempt, job, verdict, rules)
  local circuit = read_circuit(pool, model)
  local is_blamed = verdict == 'model' or verdict == 'either'
  if circuit and circuit.opens > 0 then
    if redis.call('HGET', key('kept', pool.name), model) == BY .. attempt then
      if verdict == 'well' then close_model(pool, model) end
      if is_blamed then open_model(pool, model, circuit, rules) end
    end
    return is_blamed
  end
  if verdict == 'well' and circuit then close_model(pool, model) end
  if not is_blamed then return false end
  circuit = circuit or { strikes = 0, struck = '', servers = ',', opens = 0 }
  if circuit.struck == job then return false end
  circuit.strikes, circuit.struck = circuit.strikes + 1, job
  if #circuit.servers < 512 and not circuit.servers:find(',' .. server.name .. ',', 1, true) then
    circuit.servers = circuit.servers .. server.name .. ','
  end
  if circuit.strikes < rules.failures or not is_on_several(pool, model, circuit.servers) then
    save_circuit(pool, model, circuit)
    return false
  end
  forgive(server, circuit.servers)
  open_model(pool, model, circuit, rules)
  return true
end

local function judge(server, slot, pool, model, attempt, job, verdict, rules)
  if verdict == '' or rules.failures == 0 then return end
  local is_model = judge_model(pool, model, server, attempt, job, verdict, rules)
  if not is_model or verdict == 'model' then judge_server(server, slot, job, verdict, rules) end
end
