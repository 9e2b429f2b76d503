-- Publish a batch of due executions; idempotent by execution id.
-- KEYS[1]  meta hash of the lane
-- ARGV     generation; valid_until (µs); then per item: execution id, job, tenant, version, attempt, pool, priority (0-9),
--          due (µs), expires (µs, '' for never), 'f' for forbid or 'a' for allow, payload
-- Returns  { why all was refused or '', now (µs), a letter per item: p published, a already, s skipped, w waiting, v voided,
--          e early }
-- include: endings

local ITEM = 11

if not generation or generation ~= ARGV[1] then
  return {'generation', now}                          -- rule 4
end
if now < quarantine_until then
  return {'quarantine', now}                          -- rule 5
end
if now > tonumber(ARGV[2]) then
  return {'deadline', now}                            -- rule 3
end

local unknown_before = tonumber(meta[4] or 0)

-- A tombstone whose outcome is neither acknowledged (then it has an expiry) nor in the stream any more stands for nothing.
local function outcome_is_known(id, x)
  return redis.call('PTTL', base .. 'x:' .. id) >= 0 or #redis.call('XRANGE', base .. 'out', x.out, x.out) > 0
end

-- Invariant 4: somebody may have deleted any one key. Put back what points to a queued copy; false where its entry is gone.
local function mend_queued(id, x)
  if not payload_of(x) then
    return false
  end
  if x.front and not redis.call('LPOS', front_of(x), id) then
    redis.call('RPUSH', front_of(x), id)
  end
  if x.lock then
    redis.call('SETNX', base .. 'lock:' .. x.job, id)
  end
  make_ready(x.pool, x.tenant, x.prio)
  if not redis.call('ZSCORE', base .. 'capped:' .. x.pool, x.tenant) then
    enter(x.pool, x.tenant, 0)
  end
  return true
end

-- Say whether a copy or its outcome is there that this publish must leave alone. An older version that a worker has or has
-- settled counts as this occurrence; one not drawn is replaced (rule 7).
local function is_there(id, x, ver)
  local as_new = tonumber(x.ver) >= tonumber(ver)
  if x.state == 's' then
    return outcome_is_known(id, x)
  elseif x.state == 'r' then
    if not redis.call('ZSCORE', base .. 'lease', id) then
      redis.call('ZADD', base .. 'lease', now + 60000000, id)
    end
    return true
  elseif x.state == 'x' then
    return as_new and outcome_is_known(id, x)         -- rule 11: a decision stands
  elseif x.state == 'q' then
    return as_new and mend_queued(id, x)
  elseif x.state == 'w' then
    return as_new and redis.call('EXISTS', base .. 'lock:' .. x.job) == 1
      and redis.call('LPOS', base .. 'lockwait:' .. x.job, id)
  end
  return false
end

-- Return who still holds the lock, after a holder that stands in nobody's way has been taken out of it.
local function holder_after(holder, job)
  local h = load(holder)
  if h and h.state == 'r' then
    return holder
  elseif h and h.state == 'q' then
    if voided(h) then
      drop_voided(holder, h)                          -- rule 9
    elseif expired(h) then
      expire(holder, h)
    else
      return holder
    end
  else
    unlock(holder, {lock = '1', job = job})
  end
  return redis.call('GET', base .. 'lock:' .. job)
end

-- What a fresh copy may have, and what one that was there before hands down to it.
local FRESH = {'entry', 'exp', 'lock'}
local INHERITED = {'entry', 'exp', 'lock', 'token', 'given', 'reaps', 'begun', 'lost', 'worker', 'payload', 'since'}

local function write(id, x, fields)
  local row = {base .. 'x:' .. id, 'state', x.state, 'ver', x.ver, 'job', x.job, 'tenant', x.tenant, 'pool', x.pool,
    'prio', x.prio}
  for _, field in ipairs(fields) do
    if x[field] then
      row[#row + 1], row[#row + 2] = field, x[field]
    end
  end
  redis.call('HSET', unpack(row))
end

local function publish(i)
  local id, job, ver, attempt, due = ARGV[i], ARGV[i + 1], ARGV[i + 3], ARGV[i + 4], tonumber(ARGV[i + 7])
  if due > now then
    return 'e'                                        -- invariant 1
  end
  local old = redis.call('HGET', base .. 'x:' .. id, 'state') and load(id)
  if old and is_there(id, old, ver) then
    return 'a'
  end
  local void, holder = unpack(redis.call('MGET', base .. 'void:' .. job, base .. 'lock:' .. job))
  if void and tonumber(ver) < tonumber(void) then
    return 'v'
  end
  local x = {state = 'q', ver = ver, job = job, tenant = ARGV[i + 2], pool = ARGV[i + 5], prio = ARGV[i + 6]}
  if ARGV[i + 8] ~= '' then
    x.exp = ARGV[i + 8]
  end
  if old then
    x.token, x.given, x.reaps, x.begun, x.lost, x.worker = old.token, old.given, old.reaps, old.begun, old.lost, old.worker
    if old.state == 'q' then
      remove_entry(id, old)
    elseif old.state == 'w' then
      redis.call('LREM', base .. 'lockwait:' .. job, 0, id)
    end
    redis.call('DEL', base .. 'x:' .. id)
  end
  if ARGV[i + 9] == 'f' then
    if holder and holder ~= id then
      holder = holder_after(holder, job)
    end
    if holder and holder ~= id then
      if attempt == '1' and due >= unknown_before then
        -- Rule 11: decided once, and the decision is stored where the copy would be. Rule 12: what may have run in a
        -- generation that was lost waits instead.
        tombstone(id, x, 'x', append('skipped', id, x, '', holder))
        return 's'
      end
      x.state, x.payload, x.since = 'w', ARGV[i + 10], string.format('%.0f', now / 1000)
      write(id, x, INHERITED)
      redis.call('RPUSH', base .. 'lockwait:' .. job, id)
      return 'w'
    end
    if not holder then
      redis.call('SET', base .. 'lock:' .. job, id)
    end
    x.lock = '1'
  elseif holder == id then
    x.lock = '1'
  end
  x.entry = add_entry(id, x, ARGV[i + 10])
  write(id, x, old and INHERITED or FRESH)
  make_ready(x.pool, x.tenant, x.prio)
  return 'p'
end

local replies = {}
for i = 3, #ARGV, ITEM do
  replies[#replies + 1] = publish(i)
end
return {'', now, table.concat(replies)}
