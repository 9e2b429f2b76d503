-- Publish a batch of due executions; idempotent by execution id.
-- KEYS[1]  meta hash of the lane
-- ARGV     generation; valid_until (µs); then per item: execution id, job, tenant, version, attempt, pool, priority
--          (0-9), due (µs), expires (µs, '' for never), 'f' for forbid or 'a' for allow, payload
-- Returns  { why all was refused or '', now (µs), a letter per item: p published, a already, s skipped, w waiting, v
--          voided, e early }
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

local keys = {}                                       -- per item: of its record, its job's void and lock
local all_new                                         -- none of these keys exists, which is the usual case

local function fetch_all()
  local tenants, seen = {}, {}
  for i = 3, #ARGV, ITEM do
    local n, job, tenant, pool = #keys, ARGV[i + 1], ARGV[i + 2], ARGV[i + 5]
    keys[n + 1], keys[n + 2], keys[n + 3] = X .. ARGV[i], VOID .. job, LOCK .. job
    local names = tenants[pool]
    if not names then
      names, seen[pool] = {}, {}
      tenants[pool] = names
    end
    if not seen[pool][tenant] then
      seen[pool][tenant] = true
      names[#names + 1] = tenant
    end
  end
  all_new = #keys > 0 and redis.call('EXISTS', unpack(keys)) == 0
  if not all_new then
    fetch(keys)
  end
  for pool, names in pairs(tenants) do
    fetch_places(pool, names)
  end
end

-- Like get, of one of the items' keys.
local function get_fetched(key)
  local value = cells[key]
  if value == nil and not all_new then
    return get(key)
  end
  return value
end

-- A tombstone whose outcome is neither acknowledged (then it has an expiry) nor in the stream any more stands for
-- nothing.
local function outcome_is_known(id, x)
  return places_in[X .. id] or redis.call('PTTL', X .. id) >= 0 or #redis.call('XRANGE', base .. 'out', x.out, x.out) > 0
end

-- Invariant 4: somebody may have deleted any one key. Put back what points to a queued copy; false where its entry is
-- gone.
local function mend_queued(id, x)
  if not payload_of(id, x) then
    return false
  end
  if x.front then
    if not redis.call('LPOS', front_of(x), id) then
      redis.call('RPUSH', front_of(x), id)
    end
    make_ready(x.pool, x.tenant, 'f', '')
  else
    -- The stream is read from its beginning once: what was granted is passed over.
    make_ready(x.pool, x.tenant, x.prio .. '=', '-')
    set_places(x.pool, x.tenant, (string.gsub(places_of(x.pool, x.tenant), x.prio .. '=%S+', x.prio .. '=-')))
  end
  if x.lock and not get(LOCK .. x.job) then
    put(LOCK .. x.job, id)
  end
  if not redis.call('ZSCORE', base .. 'capped:' .. x.pool, x.tenant) then
    enter(x.pool, x.tenant, 0)
  end
  return true
end

-- Say whether a copy or its outcome is there that this publish must leave alone. An older version that a worker has
-- or has settled counts as this occurrence; one not drawn is replaced (rule 7).
local function is_there(id, x, ver)
  local as_new = tonumber(x.ver) >= tonumber(ver)
  if x.state == 's' then
    return outcome_is_known(id, x)
  elseif x.state == 'r' then
    redis.call('ZADD', base .. 'lease', 'NX', now + 60000000, id)
    return true
  elseif x.state == 'x' then
    return as_new and outcome_is_known(id, x)         -- rule 11: a decision stands
  elseif x.state == 'q' then
    return as_new and mend_queued(id, x)
  elseif x.state == 'w' then
    return as_new and get(LOCK .. x.job) and redis.call('LPOS', base .. 'lockwait:' .. x.job, id)
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
    end
  else
    unlock(holder, {lock = true, job = job})          -- nobody's any more
  end
  return get(LOCK .. job)
end

-- Take an older copy of the same execution away; what is known of its deliveries goes over to the new one.
local function replace(id, old, x)
  for _, field in ipairs({'token', 'given', 'reaps', 'begun', 'lost', 'worker'}) do
    x[field] = old[field]
  end
  if old.state == 'q' then
    remove_entry(id, old)
  elseif old.state == 'w' then
    redis.call('LREM', base .. 'lockwait:' .. old.job, 0, id)
  end
end

local function publish(i, k)
  local id, job, ver, due = ARGV[i], ARGV[i + 1], ARGV[i + 3], tonumber(ARGV[i + 7])
  if due > now then
    return 'e'                                        -- invariant 1
  end
  local old = get_fetched(keys[k]) and load(id)
  if old and is_there(id, old, ver) then
    return 'a'
  end
  local void = get_fetched(keys[k + 1])
  if void and tonumber(ver) < tonumber(void) then
    return 'v'
  end
  local x = {state = 'q', ver = ver, job = job, tenant = ARGV[i + 2], pool = ARGV[i + 5], prio = ARGV[i + 6]}
  if ARGV[i + 8] ~= '' then
    x.exp = ARGV[i + 8]
  end
  if old then
    replace(id, old, x)
  end
  local holder = get_fetched(keys[k + 2])
  if ARGV[i + 9] == 'f' then
    if holder and holder ~= id then
      holder = holder_after(holder, job)
    end
    if holder and holder ~= id then
      if ARGV[i + 4] == '1' and due >= unknown_before then
        -- Rule 11: decided once, and the decision is stored where the copy would be. Rule 12: what may have run in a
        -- generation that was lost waits instead.
        tombstone(id, x, 'x', append('skipped', id, x, '', holder))
        return 's'
      end
      x.state, x.payload, x.since = 'w', ARGV[i + 10], now
      save(id, x)
      redis.call('RPUSH', base .. 'lockwait:' .. job, id)
      return 'w'
    end
    if not holder then
      put(keys[k + 2], id)
    end
    x.lock = true
  elseif holder == id then
    x.lock = true
  end
  add_entry(id, x, ARGV[i + 10])
  save(id, x)
  return 'p'
end

fetch_all()
local replies = {}
for i = 3, #ARGV, ITEM do
  replies[#replies + 1] = publish(i, 3 * #replies + 1)
end
write_all()
return {'', now, table.concat(replies)}
