-- Why: estimates the GPU-seconds that the next job of this tenant and model is charged at dispatch.
-- Keys: estimates, generation, rebuild
-- Args:
--   model, tenant: text
-- Returns: GPU-seconds
-- include: index
-- include: shares
if not Index.is_open() then return Index.refuse() end
return tostring(Shares.estimated_seconds(args.model, args.tenant))
