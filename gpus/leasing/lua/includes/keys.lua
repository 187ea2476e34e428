-- Every key of a fleet, made from KEYS[1], the prefix with the hash tag: one node of a cluster holds them all.
-- Names of pools, classes, models and tenants hold no colon; a host may, so it comes last. `queue` is one band of
-- one pool, as 'pool:band'. docs/leasing.md says what each key holds.
local prefix = KEYS[1]
local key = {
  generation = function() return prefix .. 'generation' end,
  rebuild = function() return prefix .. 'rebuild' end,
  pools = function() return prefix .. 'pools' end,
  servers = function() return prefix .. 'servers' end,
  weights = function() return prefix .. 'weights' end,
  estimates = function() return prefix .. 'estimates' end,
  resting = function() return prefix .. 'resting' end,
  leases = function() return prefix .. 'leases' end,
  settling = function() return prefix .. 'settling' end,
  held = function() return prefix .. 'held' end,
  expiry = function() return prefix .. 'expiry' end,
  ticking = function() return prefix .. 'ticking' end,

  server = function(server) return prefix .. 'server:' .. server end,
  slot = function(slot) return prefix .. 'slot:' .. slot end,

  pool = function(pool) return prefix .. 'pool:' .. pool end,
  depth = function(pool) return prefix .. 'depth:' .. pool end,
  marks = function(pool) return prefix .. 'marks:' .. pool end,
  states = function(pool) return prefix .. 'states:' .. pool end,
  pending = function(pool) return prefix .. 'pending:' .. pool end,
  classes = function(pool) return prefix .. 'classes:' .. pool end,
  class_servers = function(pool, class) return prefix .. 'class_servers:' .. pool .. ':' .. class end,
  serving = function(pool, model) return prefix .. 'serving:' .. pool .. ':' .. model end,
  open = function(pool, class) return prefix .. 'open:' .. pool .. ':' .. class end,
  free = function(pool, class, host) return prefix .. 'free:' .. pool .. ':' .. class .. ':' .. host end,
  warm = function(pool, class, model, host)
    return prefix .. 'warm:' .. pool .. ':' .. class .. ':' .. model .. ':' .. host
  end,

  line = function(queue, model, tenant) return prefix .. 'line:' .. queue .. ':' .. model .. ':' .. tenant end,
  models = function(queue, tenant) return prefix .. 'models:' .. queue .. ':' .. tenant end,
  turn = function(queue) return prefix .. 'turn:' .. queue end,
  turn_of = function(queue, model) return prefix .. 'turn:' .. queue .. ':' .. model end,
  heads = function(queue) return prefix .. 'heads:' .. queue end,
  heads_of = function(queue, model) return prefix .. 'heads:' .. queue .. ':' .. model end,
  paid = function(queue) return prefix .. 'paid:' .. queue end,
}
