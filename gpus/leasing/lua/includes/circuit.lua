-- Circuit breakers of servers and models. After several failures in a row by its own fault a circuit opens for a rest,
-- which doubles each time up to a cap. Then it is half open: exactly one job is the trial, and a good end closes it.
-- verdict: evidence of an attempt's end (`gpus.errors.Verdict`): 'well', 'server', 'model', 'either', 'answered' (bad
-- input), or '' (none: busy, cancelled, interrupted).
-- - A server's trial needs no success: 'answered' and 'model' also prove that the server works.
-- - 'either' counts for the model first, and for the server only while the model's circuit is closed.
-- - One tenant's failures open no circuit while another tenant waits for the model. If they did open it, the first job
--   of another tenant is a trial at once (`offer_trial`).
-- - Ends of attempts that began before the circuit opened do not count.
-- rules: {failures, rest µs, cap µs}; failures 0: no circuit ever opens. An open server rests (availability.lua); an open
-- model is blocked (classes.lua).
-- include: keys
-- include: call
-- include: slots
-- include: availability
-- include: classes
-- include: turns

local MAX_TENANTS = 8  -- whose failures a circuit counts

local function rest_us(rules, opens) return math.min(rules.rest * 2 ^ (opens - 1), rules.cap) end

-- Closes the server's circuit and resets its failures. Returns how many slots became claimable.
local function close_server(server)
  local was_open = server.opens > 0
  server.strikes, server.failed_job, server.opens, server.probe, server.tenants = 0, '', 0, nil, nil
  if was_open then
    server.rests_until = 0
    redis.call('ZREM', Keys.resting(), server.name)
  end
  Slots.save_server(server)
  return was_open and Availability.show_free_slots(server) or 0
end

local function open_server(server, rules)
  server.strikes, server.failed_job, server.opens, server.probe = 0, '', server.opens + 1, nil
  Availability.rest_server(server, Call.now + rest_us(rules, server.opens))
end

local function add_strike(tenants, tenant)
  if tenants[tenant] then
    tenants[tenant] = tenants[tenant] + 1
    return
  end
  local count = 0
  for _ in pairs(tenants) do count = count + 1 end
  if count < MAX_TENANTS then tenants[tenant] = 1 end
end

-- Whether the failures cannot be explained by the bad input of one tenant: a tenant's failures count for half of
-- `failures` at most. tenants: failures by tenant; sure: failures that no input can cause. Also returns the tenant with
-- the most failures.
local function is_of_several_tenants(tenants, sure, failures)
  local counted, worst = sure, nil
  for tenant, strikes in pairs(tenants) do
    counted = counted + math.min(strikes, math.ceil(failures / 2))
    if not worst or strikes > tenants[worst] or (strikes == tenants[worst] and tenant < worst) then worst = tenant end
  end
  return counted >= failures, worst
end

-- Whether one tenant alone caused the failures, while another one waits for the model.
local function is_of_one_tenant(pool, model, tenants, sure, failures)
  local of_several, worst = is_of_several_tenants(tenants, sure, failures)
  return not of_several and Turns.another_tenant(pool, model, { [worst] = true }) ~= nil
end

local function strike_server(server, pool, slot, job, verdict, rules)
  server.strikes, server.failed_job, server.tenants = server.strikes + 1, job, server.tenants or {}
  if verdict == 'either' then add_strike(server.tenants, slot.tenant) end
  local of_tenants = 0
  for _, strikes in pairs(server.tenants) do of_tenants = of_tenants + strikes end
  if server.strikes < rules.failures
    or is_of_one_tenant(pool, slot.model, server.tenants, server.strikes - of_tenants, rules.failures) then
    Slots.save_server(server)
  else
    open_server(server, rules)
  end
end

local CLOSES = { well = true, answered = true, model = true }  -- a server that is half open

-- slot: where the attempt ended.
local function judge_server(server, pool, slot, job, verdict, rules)
  if server.gone then return end
  local is_blamed = verdict == 'server' or verdict == 'either'
  if server.opens > 0 then
    if slot.name ~= server.probe then return end
    if CLOSES[verdict] then close_server(server) end
    if not is_blamed then return end
    local tenants = server.tenants or {}
    if verdict == 'either' and tenants[slot.tenant] and Turns.another_tenant(pool, slot.model, tenants) then return end
    open_server(server, rules)
  elseif verdict == 'well' then
    if server.strikes > 0 then close_server(server) end
  elseif verdict == 'server' or (is_blamed and server.failed_job ~= job) then  -- one job's bad input counts once
    strike_server(server, pool, slot, job, verdict, rules)
  end
end

local function save_circuit(pool, model, circuit)
  pool.failing = pool.failing + redis.call('HSET', Keys.circuits(pool.name), model,
    cmsgpack.pack(circuit.strikes, circuit.failed_job, circuit.servers, circuit.opens, circuit.tenants, circuit.alone))
end

-- Closes the model's circuit and deletes its record.
local function close_model(pool, model)
  pool.failing = pool.failing - redis.call('HDEL', Keys.circuits(pool.name), model)
  local was_open = redis.call('HDEL', Keys.kept(pool.name), model) == 1
  Classes.forget_kept(pool.name)
  if was_open then Turns.end_aside(pool, model) end
end

local function keep_until(pool, model, until_us)
  redis.call('HSET', Keys.kept(pool.name), model, string.format('%.0f', until_us))
  Classes.forget_kept(pool.name)
end

local function open_model(pool, model, circuit, rules)
  circuit.strikes, circuit.failed_job, circuit.opens = 0, '', circuit.opens + 1
  save_circuit(pool, model, circuit)
  keep_until(pool, model, Call.now + rest_us(rules, circuit.opens))
end

-- An attempt of a model with an open circuit ended.
local function judge_open(pool, model, circuit, attempt, tenant, verdict, rules)
  local is_trial = redis.call('HGET', Keys.kept(pool.name), model) == Classes.BY .. attempt
  local is_others = circuit.alone ~= '' and circuit.alone ~= tenant
  if verdict == 'well' then
    if is_trial or is_others then close_model(pool, model) end
  elseif is_trial and (verdict == 'model' or verdict == 'either') then
    add_strike(circuit.tenants, tenant)
    if is_others then circuit.alone = '' end
    if circuit.alone ~= '' and Turns.another_tenant(pool, model, { [tenant] = true }) then
      save_circuit(pool, model, circuit)
      keep_until(pool, model, Call.now)
    else
      open_model(pool, model, circuit, rules)
    end
  end
end

-- The model was at fault: resets the failures of the servers that ran it, and closes their circuits unless they opened
-- twice (then their own trial failed). server: the one that the caller has read.
local function clear_failures_of(server, names)
  for name in names:gmatch('[^,]+') do
    local other = name == server.name and server or Slots.read_server(name)
    if other and other.opens <= 1 and other.strikes + other.opens > 0 then close_server(other) end
  end
end

-- Whether the model failed on enough servers to rule out a server as the cause.
local function is_on_several(pool, model, servers)
  local _, commas = servers:gsub(',', '')
  return commas - 1 >= math.min(2, redis.call('SCARD', Keys.serving(pool.name, model)))
end

-- Returns true if the model's circuit is open, so that the server is not at fault.
local function judge_model(pool, model, server, attempt, job, tenant, verdict, rules)
  local circuit = Classes.read_circuit(pool, model)
  local is_blamed = verdict == 'model' or verdict == 'either'
  if circuit and circuit.opens > 0 then
    judge_open(pool, model, circuit, attempt, tenant, verdict, rules)
    return is_blamed
  end
  if verdict == 'well' and circuit then close_model(pool, model) end
  if not is_blamed then return false end
  circuit = circuit or { strikes = 0, failed_job = '', servers = ',', opens = 0, tenants = {}, alone = '' }
  if circuit.failed_job == job then return false end
  circuit.strikes, circuit.failed_job = circuit.strikes + 1, job
  add_strike(circuit.tenants, tenant)
  if #circuit.servers < 512 and not circuit.servers:find(',' .. server.name .. ',', 1, true) then
    circuit.servers = circuit.servers .. server.name .. ','
  end
  if circuit.strikes < rules.failures or not is_on_several(pool, model, circuit.servers)
    or is_of_one_tenant(pool, model, circuit.tenants, 0, rules.failures) then
    save_circuit(pool, model, circuit)
    return false
  end
  local of_several, worst = is_of_several_tenants(circuit.tenants, 0, rules.failures)
  circuit.alone = of_several and '' or worst
  clear_failures_of(server, circuit.servers)
  open_model(pool, model, circuit, rules)
  return true
end

-- Applies the verdict of one attempt's end to the circuits of its model and its server.
local function apply_verdict(server, slot, pool, model, attempt, job, verdict, rules)
  if verdict == '' or rules.failures == 0 then return end
  local is_model = judge_model(pool, model, server, attempt, job, slot.tenant, verdict, rules)
  if not is_model or verdict == 'model' then judge_server(server, pool, slot, job, verdict, rules) end
end

return {
  close_model = close_model, close_server = close_server, apply_verdict = apply_verdict,
}
