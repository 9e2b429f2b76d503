-- Included: all ways in which a copy ends, goes back to its queue, or passes its lock on.
-- include: ready

-- A copy that must not run any more goes, without an outcome: only the audit ends its row. Where it was granted once,
-- the marker stays, since the last grant may still settle (rule 14).
local function forget(id, x)
  remove_entry(id, x)
  if not x.token then
    erase(id)
    return
  end
  local marker = {state = 'v'}
  for _, field in ipairs({'ver', 'job', 'tenant', 'token', 'given', 'reaps', 'worker', 'begun', 'lost', 'retry'}) do
    marker[field] = x[field]
  end
  save(id, marker)
  expire_after(X .. id, DROPPED_TTL_MS)
end

-- End a copy that no worker holds, with an outcome. One whose body has begun on an earlier delivery did not expire:
-- it is lost.
local function conclude(id, x, event, detail)
  if event == 'expired' and x.begun then
    event, detail = 'lost', '{"expired": true}'
  end
  remove_entry(id, x)
  tombstone(id, x, 'x', append(event, id, x, detail))
end

-- Rule 13: the first waiter that may still run gets the lock, and its place in its stream, in the script that frees
-- the lock.
local function unlock(id, x)
  local lock = LOCK .. x.job
  if not x.lock or get(lock) ~= id then
    return
  end
  while true do                                        -- ends: every turn takes one from the list
    local waiter = redis.call('LPOP', base .. 'lockwait:' .. x.job)
    if not waiter then
      put(lock, false)
      return
    end
    local w = load(waiter)
    if w and w.state == 'w' then
      if voided(w) then
        forget(waiter, w)
      elseif expired(w) then
        conclude(waiter, w, 'expired')
      else
        local payload = w.payload
        w.state, w.lock, w.payload = 'q', true, nil
        add_entry(waiter, w, payload)
        save(waiter, w)
        put(lock, waiter)
        return
      end
    end
  end
end

-- Rule 9: whoever drops a voided copy frees its lock in the same script.
local function drop_voided(id, x)
  forget(id, x)
  unlock(id, x)
end

local function expire(id, x)
  conclude(id, x, 'expired')
  unlock(id, x)
end

-- A delivery goes back to the front of its tenant, under the same id. The lock stays with it.
local function requeue(id, x)
  release_grant(id, x)
  x.state, x.front = 'q', true
  save(id, x)
  redis.call('RPUSH', front_of(x), id)
  make_ready(x.pool, x.tenant, 'f', '')
end

-- Returned by its worker before it began: as if it had never been handed out, so its token counts for nothing.
local function give_back(id, x)
  x.given = x.given - 1
  if x.begun == x.token then
    x.begun = nil
  end
  x.token = nil
  requeue(id, x)
end

-- End a delivery with its outcome (rule 2: a tombstone takes the marker's place).
local function finish(id, x, result, detail)
  if x.state == 'r' then
    release_grant(id, x)
  end
  remove_entry(id, x)
  tombstone(id, x, 's', append(result, id, x, detail))
  unlock(id, x)
end

-- A worker is lost: back to the front, at most *cap* times (invariant 6). Where the body had already asked for a
-- retry, that is how it ended. Returns the number of reaps so far and whether that was too often; 0 where a retry was
-- found.
local function reap(id, x, cap)
  if x.retry then
    finish(id, x, 'retry')
    return 0, false
  end
  x.reaps = (x.reaps or 0) + 1
  if x.reaps > cap then
    release_grant(id, x)
    conclude(id, x, 'reap_cap')
    unlock(id, x)
    return x.reaps, true
  end
  requeue(id, x)
  return x.reaps, false
end
