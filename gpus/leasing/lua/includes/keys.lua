-- Every key of a fleet, made from KEYS[1], the prefix with the hash tag: one node of a cluster holds them all.
-- Names of pools, classes, models and tenants hold no colon; a host may, so it comes last. `queue` is one band of
-- one pool, as 'pool:band'. docs/leasing.md says what each key holds.
local prefix = KEYS[1]

local function key_generation() return prefix .. 'generation' end
local function key_rebuild() return prefix .. 'rebuild' end
local function key_pools() return prefix .. 'pools' end
local function key_servers() return prefix .. 'servers' end
local function key_weights() return prefix .. 'weights' end
local function key_estimates() return prefix .. 'estimates' end
local function key_resting() return prefix .. 'resting' end
local function key_leases() return prefix .. 'leases' end
local function key_settling() return prefix .. 'settling' end
local function key_held() return prefix .. 'held' end
local function key_expiry() return prefix .. 'expiry' end
local function key_ticking() return prefix .. 'ticking' end

local function key_server(server) return prefix .. 'server:' .. server end
local function key_slot(slot) return prefix .. 'slot:' .. slot end

local function key_pool(pool) return prefix .. 'pool:' .. pool end
local function key_depth(pool) return prefix .. 'depth:' .. pool end
local function key_marks(pool) return prefix .. 'marks:' .. pool end
local function key_states(pool) return prefix .. 'states:' .. pool end
local function key_pending(pool) return prefix .. 'pending:' .. pool end
local function key_classes(pool) return prefix .. 'classes:' .. pool end
local function key_class_servers(pool, class) return prefix .. 'class_servers:' .. pool .. ':' .. class end
local function key_serving(pool, model) return prefix .. 'serving:' .. pool .. ':' .. model end
local function key_open(pool, class) return prefix .. 'open:' .. pool .. ':' .. class end
local function key_free(pool, class, host) return prefix .. 'free:' .. pool .. ':' .. class .. ':' .. host end
local function key_warm(pool, class, model, host)
  return prefix .. 'warm:' .. pool .. ':' .. class .. ':' .. model .. ':' .. host
end

local function key_line(queue, model, tenant)
  return prefix .. 'line:' .. queue .. ':' .. model .. ':' .. tenant
end
local function key_models(queue, tenant) return prefix .. 'models:' .. queue .. ':' .. tenant end
local function key_turn(queue) return prefix .. 'turn:' .. queue end
local function key_turn_of(queue, model) return prefix .. 'turn:' .. queue .. ':' .. model end
local function key_heads(queue) return prefix .. 'heads:' .. queue end
local function key_heads_of(queue, model) return prefix .. 'heads:' .. queue .. ':' .. model end
local function key_paid(queue) return prefix .. 'paid:' .. queue end
