-- Key names of one fleet, one function per kind; gpus/leasing/keys.py has the same functions, and a test compares the
-- two. docs/leasing.md ("Keys") lists what each key holds. The prefix carries the fleet's hash tag, so that one node of
-- a cluster holds all keys (docs/adr/0044-script-arguments-have-names.md).
-- Names of pools, classes, models and tenants hold no colon; a host may, so it comes last. queue: 'pool:band', the band
-- from 0 to 2 in which tenants stand.

local Keys = {}

-- Keys.prefix: of the fleet and layout, set when a call begins.

-- The fleet.
function Keys.generation() return Keys.prefix .. 'generation' end
function Keys.rebuild() return Keys.prefix .. 'rebuild' end
function Keys.ticking() return Keys.prefix .. 'ticking' end
function Keys.pools() return Keys.prefix .. 'pools' end
function Keys.servers() return Keys.prefix .. 'servers' end
function Keys.leases() return Keys.prefix .. 'leases' end
function Keys.held() return Keys.prefix .. 'held' end
function Keys.settling() return Keys.prefix .. 'settling' end
function Keys.expiry() return Keys.prefix .. 'expiry' end
function Keys.tenants() return Keys.prefix .. 'tenants' end
function Keys.estimates() return Keys.prefix .. 'estimates' end
function Keys.resting() return Keys.prefix .. 'resting' end
function Keys.beats() return Keys.prefix .. 'beats' end
-- Beside the index, so that a rebuild goes on with the same time.
function Keys.clock() return (Keys.prefix:gsub('[^:]*:$', 'clock')) end

-- A pool, a server, a slot or a tenant.
function Keys.pool(pool) return Keys.prefix .. 'pool:' .. pool end
function Keys.server(server) return Keys.prefix .. 'server:' .. server end
function Keys.slot(slot) return Keys.prefix .. 'slot:' .. slot end
function Keys.waits(tenant) return Keys.prefix .. 'waits:' .. tenant end
function Keys.running(tenant) return Keys.prefix .. 'running:' .. tenant end
function Keys.rate(tenant) return Keys.prefix .. 'rate:' .. tenant end
function Keys.telemetry(server) return Keys.prefix .. 'telemetry:' .. server end
function Keys.depth(pool) return Keys.prefix .. 'depth:' .. pool end
function Keys.parked_depth(pool) return Keys.prefix .. 'parked_depth:' .. pool end
function Keys.parked(pool) return Keys.prefix .. 'parked:' .. pool end
function Keys.marks(pool) return Keys.prefix .. 'marks:' .. pool end
function Keys.classes(pool) return Keys.prefix .. 'classes:' .. pool end
function Keys.states(pool) return Keys.prefix .. 'states:' .. pool end
function Keys.asked(pool) return Keys.prefix .. 'asked:' .. pool end
function Keys.foretold(pool) return Keys.prefix .. 'foretold:' .. pool end
function Keys.forecast(pool) return Keys.prefix .. 'forecast:' .. pool end
function Keys.pending(pool) return Keys.prefix .. 'pending:' .. pool end
function Keys.circuits(pool) return Keys.prefix .. 'circuits:' .. pool end
function Keys.kept(pool) return Keys.prefix .. 'kept:' .. pool end

-- A class of servers, and the slots that it offers.
function Keys.serving(pool, model) return Keys.prefix .. 'serving:' .. pool .. ':' .. model end
function Keys.class_servers(pool, class) return Keys.prefix .. 'class_servers:' .. pool .. ':' .. class end
function Keys.open(pool, class) return Keys.prefix .. 'open:' .. pool .. ':' .. class end
function Keys.free(pool, class, host) return Keys.prefix .. 'free:' .. pool .. ':' .. class .. ':' .. host end
function Keys.warm(pool, class, model, host)
  return Keys.prefix .. 'warm:' .. pool .. ':' .. class .. ':' .. model .. ':' .. host
end

-- The waiting tickets, and the orders over them. asked: the band that a ticket asks for.
function Keys.line(pool, asked, model, tenant)
  return Keys.prefix .. 'line:' .. pool .. ':' .. asked .. ':' .. model .. ':' .. tenant
end
function Keys.models(queue, tenant) return Keys.prefix .. 'models:' .. queue .. ':' .. tenant end
function Keys.broad(queue) return Keys.prefix .. 'broad:' .. queue end
function Keys.paid(queue) return Keys.prefix .. 'paid:' .. queue end
function Keys.since(queue) return Keys.prefix .. 'since:' .. queue end
function Keys.class_turn(queue, class) return Keys.prefix .. 'class_turn:' .. queue .. ':' .. class end
-- model: nil for the order over all models.
function Keys.turn(queue, model)
  if model then return Keys.prefix .. 'turn:' .. queue .. ':' .. model end
  return Keys.prefix .. 'turn:' .. queue
end
function Keys.heads(queue, model)
  if model then return Keys.prefix .. 'heads:' .. queue .. ':' .. model end
  return Keys.prefix .. 'heads:' .. queue
end

return Keys
