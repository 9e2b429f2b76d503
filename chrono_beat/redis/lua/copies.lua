-- Included: the record of an execution (x:<execution id>) and its entry in a stream.
--
-- state: q queued (an entry waits in a stream or in the front list), r running (granted), w waiting in the lock's queue;
-- tombstones: s settled, x decided without a run (skipped, expired, voided, reap cap); v dropped because it was voided, but
-- its last grant may still settle.
-- include: lane

local GROUP, CONSUMER = 'chrono', 'all'
-- A copy older than this is dropped as if it were voided, and the audit publishes it again: so a void has to be remembered
-- a little longer than this and no longer. keys.VOID_TTL_MS is a day more.
local MAX_COPY_AGE_US = 7 * 86400 * 1000000
local DROPPED_TTL_MS = 8 * 86400 * 1000

local function load(id)
  local flat = redis.call('HGETALL', base .. 'x:' .. id)
  if #flat == 0 then
    return nil
  end
  local x = {}
  for i = 1, #flat, 2 do
    x[flat[i]] = flat[i + 1]
  end
  return x
end

local function stream_of(x)
  return base .. 's:' .. x.pool .. ':' .. x.tenant .. ':' .. x.prio
end

local function front_of(x)
  return base .. 'front:' .. x.pool .. ':' .. x.tenant
end

local function add_entry(id, x, payload)
  return redis.call('XADD', stream_of(x), '*', 'e', id, 'p', payload)
end

local function payload_of(x)
  local found = x.entry and redis.call('XRANGE', stream_of(x), x.entry, x.entry)
  return found and found[1] and found[1][2][4]
end

-- Acknowledged alone an entry would stay for ever, and so would an empty stream with its group.
local function remove_entry(id, x)
  if x.front then
    redis.call('LREM', front_of(x), 1, id)
  end
  if x.entry then
    local stream = stream_of(x)
    redis.call('XACK', stream, GROUP, x.entry)
    redis.call('XDEL', stream, x.entry)
    if redis.call('XLEN', stream) == 0 then
      redis.call('DEL', stream)
    end
  end
end

local function expired(x)
  return x.exp and tonumber(x.exp) <= now
end

local function voided(x)
  local void = redis.call('GET', base .. 'void:' .. x.job)
  if void and tonumber(x.ver) < tonumber(void) then
    return true
  end
  local since = string.match(x.entry or x.since or '', '^%d+')
  return since and since * 1000 < now - MAX_COPY_AGE_US
end

-- Rule 2: the record becomes a tombstone, which stays until its outcome (an entry of the outcome stream) is acknowledged.
local function tombstone(id, x, state, outcome)
  local key = base .. 'x:' .. id
  redis.call('DEL', key)
  redis.call('HSET', key, 'state', state, 'ver', x.ver, 'given', x.given or 0, 'out', outcome)
  if x.token then
    redis.call('HSET', key, 'token', x.token, 'job', x.job, 'tenant', x.tenant)
  end
end

-- Every outcome has the same fields in the same order: a stream stores repeated field names once.
local function append(event, id, x, detail, blocked_by)
  return redis.call('XADD', base .. 'out', '*', 'event', event, 'id', id, 'job', x.job, 'tenant', x.tenant, 'ver', x.ver,
    'token', x.token or '', 'worker', x.worker or '', 'at', now, 'given', x.given or 0, 'gen', generation,
    'detail', detail or '', 'retry', x.retry or '', 'by', blocked_by or '')
end
