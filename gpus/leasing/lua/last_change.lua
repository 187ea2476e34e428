-- Why: a server's own counts prove something only if no lease of it changed around the question.
-- Keys: KEYS[1] prefix
-- Args:
--   server: text
-- Returns: seconds since a lease of it last began or ended, or nil
-- include: gate
-- include: rest
if not is_open() then return refuse() end
local server, last = read_server(args.server), nil
if not server then return nil end
each_slot(server, function(slot)
  if slot.fence > 0 then last = math.max(last or 0, slot.since_us) end
end)
return last and tostring((now - last) / 1000000) or nil
