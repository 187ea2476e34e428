-- Every key of a fleet, made from KEYS[1], the prefix with the hash tag: one node of a cluster holds them all.
-- Names of pools, classes, models and tenants hold no colon; a host may, so it comes last.
-- docs/leasing.md says what each key holds.
local prefix = KEYS[1]
local key = {
  generation = prefix .. 'generation',
  rebuild = prefix .. 'rebuild',
  pools = prefix .. 'pools',
  servers = prefix .. 'servers',
  weights = prefix .. 'weights',
  estimates = prefix .. 'estimates',
  resting = prefix .. 'resting',
  leases = prefix .. 'leases',
  held = prefix .. 'held',
  expiry = prefix .. 'expiry',
  ticking = prefix .. 'ticking',
}

function key.server(server) return prefix .. 'server:' .. server end
function key.slot(slot) return prefix .. 'slot:' .. slot end
function key.settling(attempt) return prefix .. 'settling:' .. attempt end

function key.pool(pool) return prefix .. 'pool:' .. pool end
function key.classes(pool) return prefix .. 'classes:' .. pool end
function key.class_servers(pool, class) return prefix .. 'class_servers:' .. pool .. ':' .. class end
function key.serving(pool, model) return prefix .. 'serving:' .. pool .. ':' .. model end
function key.states(pool) return prefix .. 'states:' .. pool end
function key.pending(pool) return prefix .. 'pending:' .. pool end
function key.open(pool, class) return prefix .. 'open:' .. pool .. ':' .. class end
function key.free(pool, class, host) return prefix .. 'free:' .. pool .. ':' .. class .. ':' .. host end
function key.warm(pool, class, model, host)
  return prefix .. 'warm:' .. pool .. ':' .. class .. ':' .. model .. ':' .. host
end

function key.depth(pool) return prefix .. 'depth:' .. pool end
function key.marks(pool) return prefix .. 'marks:' .. pool end
function key.line(pool, band, model, tenant)
  return prefix .. 'line:' .. pool .. ':' .. band .. ':' .. model .. ':' .. tenant
end
function key.models(pool, band, tenant) return prefix .. 'models:' .. pool .. ':' .. band .. ':' .. tenant end
function key.turn(pool, band) return prefix .. 'turn:' .. pool .. ':' .. band end
function key.heads(pool, band) return prefix .. 'heads:' .. pool .. ':' .. band end
function key.turn_of(pool, band, model) return prefix .. 'turn:' .. pool .. ':' .. band .. ':' .. model end
function key.heads_of(pool, band, model) return prefix .. 'heads:' .. pool .. ':' .. band .. ':' .. model end
function key.paid(pool, band) return prefix .. 'paid:' .. pool .. ':' .. band end
