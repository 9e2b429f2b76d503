-- Included: plain tasks that are not due yet, and how one ends.
--
-- delayed is a sorted set, copy id -> when it may be read (µs); the record has the payload, so nothing waits in a
-- worker. The field delayed of the meta hash says when to look there next, so that a draw need not ask; it may be early,
-- never late.
-- include: locks

local PROMOTED_BY_DRAW = 100                          -- let into their streams by one draw; the rest by the next

local DELAYED = base .. 'delayed'

local function note_delayed(due)
  if not meta[6] or tonumber(meta[6]) > due then
    meta[6] = due
    redis.call('HSET', KEYS[1], 'delayed', due)
  end
end

-- Let a plain task wait for its time, or come last in its stream where that has come.
local function await(id, x, due)
  x.entry = nil
  if due > now then
    x.state = 'd'
    redis.call('ZADD', DELAYED, due, id)
    note_delayed(due)
  else
    x.state = 'q'
    add_entry(id, x, '')
  end
  save(id, x)
end

local function look_again()
  local first = redis.call('ZRANGE', DELAYED, 0, 0, 'WITHSCORES')
  meta[6] = first[2]
  if first[2] then
    redis.call('HSET', KEYS[1], 'delayed', first[2])
  else
    redis.call('HDEL', KEYS[1], 'delayed')
  end
end

-- Let into their streams what is due by now; written at once, so that a draw finds it.
local function promote_due(limit)
  if not meta[6] or tonumber(meta[6]) > now then
    return
  end
  local ids = redis.call('ZRANGEBYSCORE', DELAYED, '-inf', now, 'LIMIT', 0, limit)
  fetch_all_of(ids)
  for _, id in ipairs(ids) do
    local x = load(id)
    if x and x.state == 'd' then
      await(id, x, now)
    end
  end
  if #ids > 0 then
    redis.call('ZREM', DELAYED, unpack(ids))
  end
  look_again()
  write_all()
  placed, entering, touched, grown = {}, {}, {}, {}
end

-- A plain task asked to be tried again: its next message takes this one's place, as a new one.
local function send_again(id, x)
  local retry = cjson.decode(x.retry)
  local due = math.max(retry.eta_us or 0, now + (retry.countdown_us or 0))
  local again = {
    state = 'q', ver = x.ver, job = x.job, tenant = x.tenant, plain = true, pool = retry.pool,
    prio = string.format('%d', retry.priority), payload = retry.payload, resent = x.token,
  }
  await(id, again, due)
end

-- The end of a plain task is told by Celery's result backend, not here. A tombstone stays for a while, for repeats of
-- its publish and of its settlement.
local function finish_plain(id, x, result)
  if x.state == 'd' then
    redis.call('ZREM', DELAYED, id)
  end
  withdraw(id, x)
  if result == 'retry' and x.retry then
    return send_again(id, x)
  end
  save(id, {state = 's', ver = x.ver, job = x.job, tenant = x.tenant, token = x.token, plain = true})
  expire_after(X .. id, PLAIN_TTL_MS)
end
