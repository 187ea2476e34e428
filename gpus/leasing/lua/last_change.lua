-- Why: returns how long a server's leases have not changed: only then its own count of free slots can be compared.
-- Keys: generation, rebuild, server, slot
-- Args:
--   server: text
-- Returns: seconds since one of its leases last began or ended, or nil
-- include: call
-- include: index
-- include: slots
if not Index.is_open() then return Index.refuse() end
local server, last = Slots.read_server(args.server), nil
if not server then return nil end
Slots.each_slot(server, function(slot)
  if slot.fence > 0 then last = math.max(last or 0, slot.since_us) end
end)
return last and tostring((Call.now - last) / 1000000) or nil
