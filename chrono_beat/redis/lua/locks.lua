-- Included: overlap locks (invariant 9) and who waits for them.
--
-- A copy needs up to two locks, always taken in this order, so nobody waits in a circle (rule 13): that of its job
-- (its backfills have one of their own), then that of its exclusion group. lock:<name> says who holds it,
-- lockwait:<name> who waits for it. A waiter (state w) stands in one list, x.at; it holds the locks before that one and
-- no slot. Whatever ends a copy frees what it holds, and the first waiter that may still run goes on, in the same script.
-- include: ready

local function own_lock(x)
  return LOCK .. (x.lock == 'b' and x.job .. ':b' or x.job)
end

local function group_lock(x)
  return LOCK .. '@' .. x.tenant .. ':' .. x.group
end

local function locks_of(x)
  local locks = {}
  if x.lock then
    locks[1] = own_lock(x)
  end
  if x.group then
    locks[#locks + 1] = group_lock(x)
  end
  return locks
end

local function waiters_of(lock)
  return base .. 'lockwait:' .. string.sub(lock, #LOCK + 1)
end

-- Take a copy out of wherever it waits.
local function withdraw(id, x)
  if x.at then
    redis.call('LREM', waiters_of(x.at), 0, id)
    x.at = nil
  end
  if x.ends then
    redis.call('ZREM', base .. 'ends', id)
  end
  remove_entry(id, x)
end

-- Note that tend_locks is to look at it when it expires.
local function note_end(id, x)
  if x.exp and not x.ends then
    x.ends = true
    redis.call('ZADD', base .. 'ends', x.exp, id)
  end
end

-- A copy that must not run any more goes, without an outcome: only the audit ends its row. Where it was granted once,
-- the marker stays, since the last grant may still settle (rule 14).
local function forget(id, x)
  withdraw(id, x)
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

-- End a copy that no worker holds, with an outcome. One that was granted and not given back may have begun, whether its
-- worker could say so or not: it did not expire, it is lost.
local function conclude(id, x, event, detail, by)
  if event == 'expired' and (x.token or x.begun) then
    event, detail = 'lost', '{"expired": true}'
  end
  x.retry = nil                                       -- what it had asked for counts only where it ended by itself
  withdraw(id, x)
  -- As in core/outcomes: what a worker did counts for any version and generation, a decision for its own.
  local final = not DECISIONS[event] and (event ~= 'superseded' or x.token) and true or nil
  tombstone(id, x, 'x', append(event, id, x, detail, by), final)
end

local freed = {}                                      -- locks that nobody holds and somebody may wait for

-- Wait at the end of a lock's list. What stands in the way unread, past its expiry, is ended by tend_locks.
local function stand_behind(id, x, lock, holder)
  x.at = lock
  redis.call('RPUSH', waiters_of(lock), id)
  local h = load(holder)
  if h and h.exp and h.state ~= 'r' and not h.ends then
    note_end(holder, h)
    save(holder, h)
  end
end

-- Let a copy that has its place in nobody's list take the locks it lacks. False where it has to wait for one.
local function take_locks(id, x)
  for _, lock in ipairs(locks_of(x)) do
    local holder = get(lock)
    if holder and holder ~= id then
      stand_behind(id, x, lock, holder)
      return false
    end
    put(lock, id)
  end
  return true
end

-- Let go of the locks that a copy holds. One that nobody holds was deleted by somebody; who waits for it goes on, too
-- (invariant 4).
local function release(id, x)
  for _, lock in ipairs(locks_of(x)) do
    local holder = get(lock)
    if holder == id then
      put(lock, false)
    end
    if not holder or holder == id then
      freed[#freed + 1] = lock
    end
  end
end

-- The first waiter that may still run goes on: into its stream, or to wait for its other lock.
local function hand_over(lock)
  while not get(lock) do                              -- ends: every turn takes one from the list
    local id = redis.call('LPOP', waiters_of(lock))
    if not id then
      return
    end
    local x = load(id)
    if x and x.state == 'w' and x.at == lock then
      x.at = nil
      if voided(x) then
        forget(id, x)
        release(id, x)
      elseif expired(x) then
        conclude(id, x, 'expired')
        release(id, x)
      else
        if take_locks(id, x) then
          local payload = x.payload
          x.state, x.payload = 'q', nil
          add_entry(id, x, payload)
        end
        save(id, x)
      end
    end
  end
end

-- Free what a copy holds.
local function unlock(id, x)
  release(id, x)
  while #freed > 0 do
    hand_over(table.remove(freed, 1))
  end
end

-- Take an execution from the worker that may run it, whatever that one has been told.
local function withdraw_grant(id, x)
  if x.state == 'r' then
    release_grant(id, x)
  end
  if x.stop then
    redis.call('ZREM', base .. 'stop', id)
  end
end

-- Another execution takes this one's place (policy replace). A worker that still runs it may say what it likes: its
-- grant has been withdrawn (invariant 6).
local function supersede(id, x, by)
  withdraw_grant(id, x)
  conclude(id, x, 'superseded', x.unk and '{"unknown": true}', by or x.by)
  local stone = load(id)
  stone.lost = stone.token
  save(id, stone)
end
