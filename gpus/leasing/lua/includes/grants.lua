-- Applies a change of a tenant's highest band: moves its lines as a whole from queue to queue, and no single ticket.
-- Its other limit, max_running, is in running.lua.
-- include: keys
-- include: pools
-- include: line
-- include: parked

local function move_lines(pool, tenant, from, to, asked, parked)
  local lines = redis.call('ZRANGE', Keys.models(from.at, tenant), 0, -1, 'WITHSCORES')
  for i = 1, #lines, 2 do
    local name = lines[i]
    if name:byte() - 48 == asked then
      local score = Line.own_score(pool, to, name, Line.line_score(pool, from, name, lines[i + 1]))
      redis.call('ZREM', Keys.models(from.at, tenant), name)
      redis.call('ZADD', Keys.models(to.at, tenant), score, name)
      if not parked then
        local tickets = redis.call('ZCARD', Line.named_line(pool, name, tenant))
        Line.count_tickets(pool, from, name:sub(2), tenant, -tickets, false)
        Line.count_tickets(pool, to, name:sub(2), tenant, tickets, false)
      end
    end
  end
end

-- Removes the tenant from the orders of the affected queues, moves its lines, and adds it again like a tenant that was
-- idle. before: the band that was granted until now; the rules have the new one.
local function regrant(pool, tenant, before)
  local parked, after = Line.is_parked(pool, tenant), Pools.rules_of(tenant).band
  local function is_moved(asked) return math.max(asked, before) ~= math.max(asked, after) end
  local touched = {}
  for asked = 0, 2 do
    if is_moved(asked) then
      touched[math.max(asked, before)], touched[math.max(asked, after)] = true, true
    end
  end
  if not parked then
    Parked.each_queue(pool, tenant, function(queue, models)
      if touched[queue.band] then Parked.leave_orders(pool, queue, tenant, models) end
    end)
  end
  for asked = 0, 2 do
    if is_moved(asked) then
      local from, to = pool.queues[math.max(asked, before) + 1], pool.queues[math.max(asked, after) + 1]
      move_lines(pool, tenant, from, to, asked, parked)
    end
  end
  if not parked then
    Parked.each_queue(pool, tenant, function(queue, models)
      if touched[queue.band] then Parked.enter_orders(pool, queue, tenant, models) end
    end)
  end
end

return {
  regrant = regrant,
}
