-- Included: which tenants of a pool can be drawn from, their virtual times, and waking idle workers.
--
-- A tenant with entries that nobody has drawn is in exactly one of two sorted sets, with its virtual time as score:
-- ready:<pool>, or capped:<pool> while it is paused or runs as much as it may. prios:<pool> names the priorities in which it
-- has entries; its field exists exactly while the tenant is in one of the two. floor:<pool> is the virtual time of the pool:
-- nobody enters below it, so an idle tenant has not saved up credit; and a tenant leaves only when it is first in line, at the
-- floor, so one that drains and comes back at once has gained nothing. core/fairness.py is the same in Python.
-- include: lane

-- core.fairness has the same numbers; a test compares them.
local DEFAULT_WEIGHT, DEFAULT_MAX_RUNNING = 1, 20

local floors = {}

local function floor_of(pool)
  if not floors[pool] then
    floors[pool] = tonumber(redis.call('GET', base .. 'floor:' .. pool) or 0)
  end
  return floors[pool]
end

local woken = {}

-- At most one token lies in a pool's wake list: a draw that leaves work behind puts the next one there.
local function wake(pool)
  if not woken[pool] and redis.call('EXISTS', base .. 'ready:' .. pool) == 1 then
    woken[pool] = true
    local list = base .. 'wake:' .. pool
    if redis.call('LLEN', list) == 0 then
      redis.call('RPUSH', list, '1')
    end
  end
end

local function enter(pool, tenant, virtual_time)
  redis.call('ZADD', base .. 'ready:' .. pool, 'NX', math.max(floor_of(pool), virtual_time), tenant)
  wake(pool)
end

-- Note that the tenant has an entry of this priority.
local function make_ready(pool, tenant, prio)
  local key = base .. 'prios:' .. pool
  local digits = redis.call('HGET', key, tenant)
  if not digits then
    redis.call('HSET', key, tenant, prio)
    enter(pool, tenant, 0)
  elseif not string.find(digits, prio, 1, true) then
    local at = 1
    while at <= #digits and string.sub(digits, at, at) < prio do
      at = at + 1
    end
    redis.call('HSET', key, tenant, string.sub(digits, 1, at - 1) .. prio .. string.sub(digits, at))
  end
  wake(pool)
end

-- Invariant 8: weight and room of a tenant; no room while it is paused. run:<tenant> is a set, so nothing can drift.
local function limits(tenant)
  local row = redis.call('HMGET', base .. 'tenant:' .. tenant, 'weight', 'max_running', 'paused')
  if row[3] == '1' then
    return 1, 0
  end
  local running = redis.call('SCARD', base .. 'run:' .. tenant)
  return tonumber(row[1] or DEFAULT_WEIGHT), tonumber(row[2] or DEFAULT_MAX_RUNNING) - running
end

-- Where a slot or the limits of a tenant changed: it can be drawn from again in every pool that set it aside.
local function uncap(tenant)
  local held = base .. 'held:' .. tenant
  local pools = redis.call('SMEMBERS', held)
  if #pools == 0 then
    return
  end
  local _, room = limits(tenant)
  if room > 0 then
    redis.call('DEL', held)
    for _, pool in ipairs(pools) do
      local virtual_time = redis.call('ZSCORE', base .. 'capped:' .. pool, tenant)
      if virtual_time then
        redis.call('ZREM', base .. 'capped:' .. pool, tenant)
        enter(pool, tenant, tonumber(virtual_time))
      end
    end
  end
end
