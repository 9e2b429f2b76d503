-- Included: whether a copy that should be in the lane really is, and putting back what points to it.
--
-- Invariant 4: somebody may have deleted any one key. Of a copy the record and the entry are needed; without them it is
-- published again. All else follows from the record.
-- include: endings

local LEASE_US = 60000000                             -- of a grant whose lease is gone: its worker renews it, or is gone

local in_line = {}                                    -- pool and tenant -> true where it was looked after

local function mend_place(id, x)
  if x.parked then
    redis.call('ZADD', base .. 'parked', 'NX', x.parked_at, id)
    return
  end
  local value = places_of(x.pool, x.tenant)
  if x.front then
    if not redis.call('LPOS', front_of(x), id) then
      redis.call('RPUSH', front_of(x), id)
    end
    if not value or not string.find(value, 'f', 1, true) then
      make_ready(x.pool, x.tenant, 'f', '')
    end
    return
  end
  local from = value and string.match(value, x.prio .. '=(%S+)')
  if not from or is_passed(x.entry, from) then
    make_ready(x.pool, x.tenant, x.prio .. '=', '-')
    read_anew(x.pool, x.tenant, x.prio)
  end
end

local function mend_line(x)
  local key = x.pool .. ':' .. x.tenant
  if in_line[key] then
    return
  end
  in_line[key] = true
  if redis.call('ZSCORE', base .. 'capped:' .. x.pool, x.tenant) then
    redis.call('SADD', base .. 'held:' .. x.tenant, x.pool)
    uncap(x.tenant)
  elseif not redis.call('ZSCORE', base .. 'ready:' .. x.pool, x.tenant) then
    enter(x.pool, x.tenant, 0)
    touched[x.pool] = true
  end
end

-- Take again the locks that a copy has by its own account; where another has one by now, this one goes without.
local function mend_locks(id, x)
  for _, lock in ipairs(locks_of(x)) do
    if lock == x.at then
      break                                           -- it waits for this one
    elseif not get(lock) then
      put(lock, id)
    end
  end
  if x.ends then
    redis.call('ZADD', base .. 'ends', 'NX', x.exp, id)
  end
  if x.stop then
    redis.call('ZADD', base .. 'stop', 'NX', x.stop, id)
  end
end

-- Put back what points to a queued copy; false where its entry is gone.
local function mend_queued(id, x)
  if not payload_of(id, x) then
    return false
  end
  mend_place(id, x)
  mend_locks(id, x)
  if not x.parked then
    mend_line(x)
  end
  return true
end

local function mend_running(id, x)
  redis.call('ZADD', base .. 'lease', 'NX', now + LEASE_US, id)
  redis.call('SADD', base .. 'run:' .. x.tenant, id)
  redis.call('SADD', base .. 'own:' .. x.worker, id)
  mend_locks(id, x)
end

-- Say whether somebody has the lock that a waiter waits for, and the waiter its place in the queue.
local function is_waiting(id, x)
  local holder = x.at and get(x.at)
  local h = holder and load(holder)
  if not h or not (h.state == 'q' or h.state == 'r' or h.state == 'w') or not redis.call('LPOS', waiters_of(x.at), id) then
    return false
  end
  mend_locks(id, x)
  return true
end

-- Say whether a copy or its outcome is there that a publish of that version must leave alone. An older version that a
-- worker has or has settled counts as this occurrence; one not drawn is replaced (rule 7).
local function is_there(id, x, ver)
  local as_new = tonumber(x.ver) >= tonumber(ver)
  if x.state == 's' then
    return outcome_is_known(id, x)
  elseif x.state == 'r' then
    mend_running(id, x)
    return true
  elseif x.state == 'x' then
    return (as_new or x.final) and outcome_is_known(id, x)         -- rule 11: a decision stands
  elseif x.state == 'q' then
    return as_new and mend_queued(id, x)
  elseif x.state == 'w' then
    return as_new and is_waiting(id, x)
  end
  return false
end
