-- Publish a batch of due executions; idempotent by execution id.
-- KEYS[1]  meta hash of the lane
-- ARGV     generation; valid_until (µs); how long one that is told to make room may still run (µs); then per item:
--          execution id, job, tenant, version, exclusion group ('' for none), pool, priority (0-9), due (µs), expires
--          (µs, '' for never), what to do while another of the job is active (a run beside it, f be skipped, r take its
--          place, w wait, b wait for another backfill only, m none: it is missed), payload
-- Returns  { why all was refused or '', now (µs), a letter per item: p published, a already, s ended by a decision, w
--          waiting, v voided, e early, m missed; then for each running one that is to stop: execution id, token, worker }
-- include: mending

local ITEM = 11
local FIRST = 4

if not generation or generation ~= ARGV[1] then
  return {'generation', now}                          -- rule 4
end
if now < quarantine_until then
  return {'quarantine', now}                          -- rule 5
end
if now > tonumber(ARGV[2]) then
  return {'deadline', now}                            -- rule 3
end

local grace = tonumber(ARGV[3])

local keys = {}                                       -- per item: of its record, its job's void and lock; then of groups
local all_new                                         -- none of these keys exists, which is the usual case

local function fetch_all()
  local tenants, seen, groups = {}, {}, {}
  for i = FIRST, #ARGV, ITEM do
    local n, job, tenant, pool = #keys, ARGV[i + 1], ARGV[i + 2], ARGV[i + 5]
    keys[n + 1], keys[n + 2], keys[n + 3] = X .. ARGV[i], VOID .. job, LOCK .. job
    if ARGV[i + 9] == 'b' then
      keys[n + 3] = own_lock({job = job, lock = 'b'})
    end
    if ARGV[i + 4] ~= '' then
      groups[#groups + 1] = group_lock({tenant = tenant, group = ARGV[i + 4]})
    end
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
  for _, key in ipairs(groups) do
    keys[#keys + 1] = key
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

-- Take an older copy of the same execution away; what is known of its deliveries goes over to the new one, and so do
-- its locks if it needs the same ones.
local function replace(id, old, x)
  for _, field in ipairs({'token', 'given', 'reaps', 'begun', 'lost', 'worker'}) do
    x[field] = old[field]
  end
  if old.state == 'q' or old.state == 'w' then
    if not payload_of(id, old) then
      old.entry = nil                                 -- its stream was deleted: a new one may have given the id anew
    end
    withdraw(id, old)
    if table.concat(locks_of(old), ' ') ~= table.concat(locks_of(x), ' ') then
      unlock(id, old)
    end
  end
end

-- Return who holds a lock, after a holder that stands in nobody's way has been taken out of it; nil for none or itself.
local function other_holder(lock, id)
  local holder = get_fetched(lock)
  if not holder or holder == id then
    return nil
  end
  local h = load(holder)
  if h and h.state == 'r' then
    return holder
  elseif h and (h.state == 'q' or h.state == 'w') then
    if voided(h) then
      drop_voided(holder, h)                          -- rule 9
    elseif expired(h) then
      expire(holder, h)
    end
  else
    put(lock, false)                                  -- nobody's any more
    freed[1] = lock
    unlock(holder, {})
  end
  holder = get(lock)
  return holder and holder ~= id and holder or nil
end

local function wait(id, x, lock, holder, payload)
  x.state, x.payload, x.since = 'w', payload, now
  stand_behind(id, x, lock, holder)
  note_end(id, x)
  save(id, x)
  return 'w'
end

-- Say whether an execution's occurrence is of an earlier instant than another one's of the job.
local function is_older(id, other)
  return (string.match(id, ':([^:Z]*)') or '') < (string.match(other, ':([^:Z]*)') or '')
end

local stops = {}

-- Policy replace: only the newest of a job stays. Whoever waits or is queued ends; one that runs is told to. Returns
-- false where the way is free then, else the letter of the reply.
local function make_room(id, x, lock, holder, payload)
  local waiting, newest = redis.call('LRANGE', waiters_of(lock), 0, -1), holder
  for _, other in ipairs(waiting) do
    newest = is_older(newest, other) and other or newest
  end
  if is_older(id, newest) then
    if x.unk then
      return wait(id, x, lock, holder, payload)       -- rule 12
    end
    supersede(id, x, newest)
    return 's'
  end
  for _, other in ipairs(waiting) do
    local y = load(other)
    if y and y.state == 'w' and y.at == lock then
      supersede(other, y, id)
    end
  end
  local h = load(holder)
  if h.state ~= 'r' then
    supersede(holder, h, id)
    unlock(holder, h)
    put(lock, id)
    return false
  end
  h.by = id
  if not h.stop then
    h.stop = now + grace
    redis.call('ZADD', base .. 'stop', h.stop, holder)
    local n = #stops
    stops[n + 1], stops[n + 2], stops[n + 3] = holder, h.token, h.worker
  end
  save(holder, h)
  return wait(id, x, lock, holder, payload)
end

-- Invariant 9: what becomes of an execution while another of its job is active. Returns false where the way is free
-- then, else the letter of the reply.
local function overlap(id, x, way, lock, holder, payload)
  if way == 'r' then
    return make_room(id, x, lock, holder, payload)
  elseif way == 'f' and not x.unk then
    -- Rule 11: decided once, and the decision is stored where the copy would be. Rule 12: what may have run in a
    -- generation that was lost waits instead.
    tombstone(id, x, 'x', append('skipped', id, x, '', holder))
    return 's'
  end
  return wait(id, x, lock, holder, payload)
end

-- Take the locks that the execution needs, its own first (rule 13). Returns false where it has them, else the letter
-- of the reply.
local function take_locks_or(id, x, way, own, payload)
  if x.lock then
    local holder = other_holder(own, id)
    local letter = holder and overlap(id, x, way, own, holder, payload)
    if letter then
      return letter
    elseif not holder and get_fetched(own) ~= id then
      put(own, id)
    end
  end
  if x.group then
    local lock = group_lock(x)
    local holder = other_holder(lock, id)
    if holder then
      return wait(id, x, lock, holder, payload)
    end
    put(lock, id)
  end
  return false
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
  local way = ARGV[i + 9]
  if ARGV[i + 8] ~= '' then
    x.exp = ARGV[i + 8]
  end
  if way ~= 'a' and way ~= 'm' then
    x.lock = way == 'b' and 'b' or true
  end
  if ARGV[i + 4] ~= '' then
    x.group = ARGV[i + 4]
  end
  if due < unknown_before then
    x.unk = true
  end
  if old then
    replace(id, old, x)
    x.unk = x.unk or x.token and true or nil          -- rule 12: a worker had it, and its row may say that it runs
  end
  if way == 'm' then
    tombstone(id, x, 'x', append('missed', id, x))    -- rule 11: nobody can publish it any more
    unlock(id, old or x)
    return 'm'
  end
  local letter = take_locks_or(id, x, way, keys[k + 2], ARGV[i + 10])
  if letter then
    return letter
  end
  add_entry(id, x, ARGV[i + 10])
  save(id, x)
  return 'p'
end

fetch_all()
local replies = {}
for i = FIRST, #ARGV, ITEM do
  replies[#replies + 1] = publish(i, 3 * #replies + 1)
end
write_all()
return {'', now, table.concat(replies), unpack(stops)}
