-- Why: what the next job of this tenant and model would be charged at dispatch.
-- Keys: KEYS[1] prefix
-- Args:
--   model, tenant: text
-- Returns: GPU-seconds
-- include: gate
-- include: estimate
if not is_open() then return refuse() end
return tostring(estimated_seconds(args.model, args.tenant))
