-- Key names of one fleet, one function per kind; gpus/leasing/keys.py has the same functions, and a test compares the
-- two. docs/explanation/leasing.md ("Keys") lists what each key holds. The prefix carries the fleet's hash tag, so that one node of
-- a cluster holds all keys (docs/adr/0044-named-keys-and-script-arguments.md).
-- Names of pools, classes, models and tenants hold no colon; a host may, so it comes last. queue: 'pool:band', the band
-- from 0 to 2 in which tenants wait.

local Keys = {}
local prefix  -- of the fleet and layout

-- Called when a call begins.
function Keys.set_prefix(its_prefix) prefix = its_prefix end

-- Of the fleet.
function Keys.generation() return prefix .. 'generation' end
function Keys.rebuild() return prefix .. 'rebuild' end
function Keys.ticking() return prefix .. 'ticking' end
function Keys.pools() return prefix .. 'pools' end
function Keys.servers() return prefix .. 'servers' end
function Keys.leases() return prefix .. 'leases' end
function Keys.held() return prefix .. 'held' end
function Keys.settling() return prefix .. 'settling' end
function Keys.expiry() return prefix .. 'expiry' end
function Keys.tenants() return prefix .. 'tenants' end
function Keys.estimates() return prefix .. 'estimates' end
function Keys.resting() return prefix .. 'resting' end
function Keys.beats() return prefix .. 'beats' end
-- Outside the index, so that time continues through a rebuild.
function Keys.clock() return (prefix:gsub('[^:]*:$', 'clock')) end

-- Of a pool, a server, a slot or a tenant.
function Keys.pool(pool) return prefix .. 'pool:' .. pool end
function Keys.server(server) return prefix .. 'server:' .. server end
function Keys.slot(slot) return prefix .. 'slot:' .. slot end
function Keys.waits(tenant) return prefix .. 'waits:' .. tenant end
function Keys.running(tenant) return prefix .. 'running:' .. tenant end
function Keys.rate(tenant) return prefix .. 'rate:' .. tenant end
function Keys.telemetry(server) return prefix .. 'telemetry:' .. server end
function Keys.summaries(server) return prefix .. 'summaries:' .. server end
function Keys.depth(pool) return prefix .. 'depth:' .. pool end
function Keys.parked_depth(pool) return prefix .. 'parked_depth:' .. pool end
function Keys.parked(pool) return prefix .. 'parked:' .. pool end
function Keys.marks(pool) return prefix .. 'marks:' .. pool end
function Keys.placed(pool) return prefix .. 'placed:' .. pool end
function Keys.classes(pool) return prefix .. 'classes:' .. pool end
function Keys.states(pool) return prefix .. 'states:' .. pool end
function Keys.asked(pool) return prefix .. 'asked:' .. pool end
function Keys.foretold(pool) return prefix .. 'foretold:' .. pool end
function Keys.forecast(pool) return prefix .. 'forecast:' .. pool end
function Keys.pending(pool) return prefix .. 'pending:' .. pool end
function Keys.circuits(pool) return prefix .. 'circuits:' .. pool end
function Keys.kept(pool) return prefix .. 'kept:' .. pool end

-- Of a class of servers, and of its free slots.
function Keys.serving(pool, model) return prefix .. 'serving:' .. pool .. ':' .. model end
function Keys.class_servers(pool, class) return prefix .. 'class_servers:' .. pool .. ':' .. class end
function Keys.open(pool, class) return prefix .. 'open:' .. pool .. ':' .. class end
function Keys.free(pool, class, host) return prefix .. 'free:' .. pool .. ':' .. class .. ':' .. host end
function Keys.warm(pool, class, model, host)
  return prefix .. 'warm:' .. pool .. ':' .. class .. ':' .. model .. ':' .. host
end

-- The waiting tickets, and the orders over them. asked: the band that a ticket asks for.
function Keys.line(pool, asked, model, tenant)
  return prefix .. 'line:' .. pool .. ':' .. asked .. ':' .. model .. ':' .. tenant
end
function Keys.models(queue, tenant) return prefix .. 'models:' .. queue .. ':' .. tenant end
function Keys.broad(queue) return prefix .. 'broad:' .. queue end
function Keys.paid(queue) return prefix .. 'paid:' .. queue end
function Keys.since(queue) return prefix .. 'since:' .. queue end
function Keys.class_turn(queue, class) return prefix .. 'class_turn:' .. queue .. ':' .. class end
-- model: nil for the order over all models.
function Keys.turn(queue, model)
  if model then return prefix .. 'turn:' .. queue .. ':' .. model end
  return prefix .. 'turn:' .. queue
end
function Keys.heads(queue, model)
  if model then return prefix .. 'heads:' .. queue .. ':' .. model end
  return prefix .. 'heads:' .. queue
end

return Keys
