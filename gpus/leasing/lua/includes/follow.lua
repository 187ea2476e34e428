-- What the holder of a slot runs next: its follower, claimed while the holder's run goes on, so that nobody has to be
-- asked between the two. Its ticket is out of the line and charged; the slot stays the holder's. It has no expiry of its
-- own: it begins when its worker says so, and goes with the holder's lease if it did not.
-- include: give
-- include: charge
-- include: room

-- Nothing of it began: it costs its tenant nothing. Its job waits again once it is pushed. The caller saves the slot.
local function drop_follower(slot)
  local follower = read_follower(slot)
  if not follower then return end
  slot.follower, slot.fence = nil, math.max(slot.fence, follower.fence)
  local pool = load_pool(follower.pool)
  correct_charge(pool, follower, 0)
  save_pool(pool)
  run_ends(follower.tenant, follower.attempt)
  forget_job(follower.job, follower.attempt)
end

-- The holder's lease is over and forgotten: the follower holds the slot. since_us: from when its time counts; not while it
-- waited. ended: as in `begin_lease`.
local function begin_follower(slot, worker, host, since_us, lease_us, ended)
  local follower = read_follower(slot)
  local fence = follower.fence
  slot.follower, follower.fence, follower.leased_us = nil, nil, since_us
  put_lease(slot, follower, worker, host)
  begin_lease(slot, fence, lease_us, ended)
end

-- Whether its tenant may begin jobs now. That it runs as many as it may is no reason: the follower is one of them.
local function is_follower_held_back(pool, follower)
  local reasons = pool.parked > 0 and redis.call('HGET', Keys.parked(pool.name), follower.tenant)
  return reasons and reasons:gsub(FULL, '') ~= ''
end

-- How many slots may run jobs of the tenant at once, in all pools in which it waits.
local function slots_for(tenant)
  local slots = 0
  for _, name in ipairs(redis.call('SMEMBERS', Keys.waits(tenant))) do
    for _, count in ipairs(redis.call('HVALS', Keys.states(name))) do slots = slots + tonumber(count) end
  end
  return slots
end

-- Whether a job of the tenant may be claimed ahead: it counts for the tenant's limit before it runs, and must keep no
-- free slot from a job that the limit allows. One behind another tenant's run stands for its slot; one behind a run of
-- its own tenant counts beside it, and at most half of what counts are such.
local function leaves_room(tenant, holder_tenant)
  local cap = rules_of(tenant).cap
  if not cap then return true end
  local beside = math.floor(redis.call('SCARD', Keys.running(tenant)) / 2) + (tenant == holder_tenant and 1 or 0)
  return cap >= slots_for(tenant) + beside
end

-- Whether the tenant of the run would go on waiting only until that run is over: whose turn it is then, nobody knows yet.
local function frees_its_tenant(slot, pool)
  return is_full(slot.tenant) and redis.call('SISMEMBER', Keys.waits(slot.tenant), pool.name) == 1
end

-- Claims one for the holder that is leased the slot, and has none; the answer is a lease for the store. Or nil: nothing that may run there
-- waits, or less than one for each running slot, so that some other one will be free for it sooner; or the
-- server or a model failed last, or a tenant's limit decides, and what may begin is seen when the run is over.
local function follow(slot, server, index, pool, attempt, warm)
  if pool.failing > 0 or not may_go_on(slot, server, index) then return nil end
  local queues = pool.queues
  local waiting = queues[1].waiting + queues[2].waiting + queues[3].waiting
  if waiting < tonumber(redis.call('HGET', Keys.states(slot.home), 'leased')) then return nil end
  if frees_its_tenant(slot, pool) then return nil end
  local follower = take_next(slot, server, pool, attempt, warm, function(tenant) return leaves_room(tenant, slot.tenant) end)
  if not follower then
    save_pool(pool)
    return nil
  end
  follower.name, follower.fence = slot.name, math.max(slot.fence + 1, now)
  slot.follower = cmsgpack.pack(follower.pool, follower.job, attempt, follower.model, follower.tenant,
    follower.priority, follower.band, follower.dues, follower.estimate, follower.leased_us, follower.fence)
  save_slot(slot)
  run_begins(follower.tenant, attempt)
  return lease_reply(follower, false)
end
