-- Every key of a fleet, made from the prefix with the hash tag: one node of a cluster holds them all.
-- docs/leasing.md lists the kinds of keys and what stands behind each. Names of pools, classes, models and tenants
-- hold no colon; a host may, so it comes last. `queue` is one band of one pool, as 'pool:band'.
-- include: call

local function key(kind, a, b, c, d)
  if d then return prefix .. kind .. ':' .. a .. ':' .. b .. ':' .. c .. ':' .. d end
  if c then return prefix .. kind .. ':' .. a .. ':' .. b .. ':' .. c end
  if b then return prefix .. kind .. ':' .. a .. ':' .. b end
  if a then return prefix .. kind .. ':' .. a end
  return prefix .. kind
end
