-- Included: the record of an execution (x:<execution id>, a MessagePack map) and its entry in a stream.
--
-- state: q queued (an entry waits in a stream or in the front list), r running (granted), w waiting for a lock;
-- tombstones: s settled, x decided without a run (skipped, expired, voided, reap cap); v dropped because it was
-- voided, but its last grant may still settle. x.final: the outcome of an x ends the row whatever its version is.
--
-- A plain task (x.plain; its id is "plain:<Celery task id>:<nonce of its message>") has no execution row: nobody could
-- publish it again. So its payload is in the record, which outlives a new generation; no void, no age and no lock
-- concerns it, and its ends are no outcomes. It has one state more, d: it is not due yet (delays.lua).
-- include: cells

-- A copy older than this is dropped as if it were voided, and the audit publishes it again: so a void has to be
-- remembered a little longer than this and no longer. keys.VOID_TTL_MS is a day more.
local MAX_COPY_AGE_US = 7 * 86400 * 1000000
local DROPPED_TTL_MS = 8 * 86400 * 1000
local PLAIN, PLAIN_TTL_MS = 'plain:', 60000           -- what ids of plain tasks begin with; of their tombstones

local X, LOCK, VOID = base .. 'x:', base .. 'lock:', base .. 'void:'

local records = {}

-- What somebody else has written under the name of a record is none: a script that broke off at it would do so for
-- ever.
local function unpacked(packed)
  local ok, x = pcall(cmsgpack.unpack, packed)
  if ok and type(x) == 'table' and x.state and x.job and x.tenant and x.ver then
    return (x.pool and x.prio or x.state == 's' or x.state == 'x' or x.state == 'v') and x
  end
  return false
end

-- Return the record of an execution, nil if there is none. Changes to it count after save.
local function load(id)
  local x = records[id]
  if x == nil then
    local packed = get(X .. id)
    x = packed and unpacked(packed)
    records[id] = x
  end
  return x or nil
end

-- Read the records of executions in one command, for load.
local function fetch_all_of(ids)
  local keys = {}
  for i, id in ipairs(ids) do
    keys[i] = X .. id
  end
  fetch(keys)
end

local function save(id, x)
  records[id] = x
  put(X .. id, cmsgpack.pack(x))
end

local function erase(id)
  records[id] = false
  put(X .. id, false)
end

local function stream_of(x)
  return base .. 's:' .. x.pool .. ':' .. x.tenant .. ':' .. x.prio
end

local function front_of(x)
  return base .. 'front:' .. x.pool .. ':' .. x.tenant
end

local function payload_of(id, x)
  if x.plain then
    return x.payload
  end
  local found = x.entry and redis.call('XRANGE', stream_of(x), x.entry, x.entry)
  return found and found[1] and found[1][2][2] == id and found[1][2][4]
end

local function expired(x)
  return x.exp and tonumber(x.exp) <= now
end

local function voided(x)
  if x.plain then
    return false
  end
  local void = get(VOID .. x.job)
  if void and tonumber(x.ver) < tonumber(void) then
    return true
  end
  return x.since and x.since < now - MAX_COPY_AGE_US
end

-- Rule 2: the record becomes a tombstone, which stays until its outcome (an entry of the outcome stream) is
-- acknowledged.
local function tombstone(id, x, state, outcome, final)
  save(id, {
    state = state, ver = x.ver, given = x.given, token = x.token, job = x.job, tenant = x.tenant, out = outcome,
    final = final,
  })
end

-- A tombstone whose outcome is neither acknowledged (then it has an expiry) nor in the stream any more stands for
-- nothing.
local function outcome_is_known(id, x)
  return x.plain or places_in[X .. id] or redis.call('PTTL', X .. id) >= 0 or #redis.call('XRANGE', base .. 'out', x.out, x.out) > 0
end

-- Outcomes without a run. Rule 12: what was due before the lane's generation began may have run in a lost one. Only the
-- recorder knows when an execution was due, so these say which instants are in doubt.
local DECISIONS = {skipped = true, expired = true, voided = true, missed = true, cancelled = true}

-- Every outcome has the same fields in the same order: a stream stores repeated field names once.
local function append(event, id, x, detail, blocked_by)
  if unknown_before > 0 and DECISIONS[event] then
    detail = string.format('{"unknown_before": %.0f}', unknown_before)
  end
  return redis.call('XADD', base .. 'out', '*', 'event', event, 'id', id, 'job', x.job, 'tenant', x.tenant,
    'ver', x.ver, 'token', x.token or '', 'worker', x.worker or '', 'at', now, 'given', x.given or 0, 'gen', generation,
    'detail', detail or '', 'retry', x.retry or '', 'by', blocked_by or '')
end

-- Note what was found in the lane and is not ours: it becomes an outcome of nobody, so that it is counted in one place.
local function set_aside(why)
  append('alien', '', {job = '', tenant = '', ver = 0}, cjson.encode({why = why}))
end
