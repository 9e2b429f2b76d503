-- Included: all ways in which a copy ends, goes back to its queue, or passes its lock on.
-- include: delays

-- Rule 9: whoever drops a voided copy frees its lock in the same script.
local function drop_voided(id, x)
  forget(id, x)
  unlock(id, x)
end

local function expire(id, x)
  conclude(id, x, 'expired')
  unlock(id, x)
end

-- End a copy whose cancellation was asked for, also one that comes back from a worker. No publish of any version brings
-- it back.
local function cancel(id, x)
  withdraw_grant(id, x)
  x.ver = '2147483647'
  conclude(id, x, 'cancelled')
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

-- As if it had never been handed out, so its token counts for nothing.
local function unhand(x)
  x.given = x.given - 1
  if x.begun == x.token then
    x.begun = nil
  end
  x.token = nil
end

-- Returned by its worker before it began.
local function give_back(id, x)
  unhand(x)
  if x.cancelled then
    cancel(id, x)
  elseif x.stop then
    supersede(id, x)
    unlock(id, x)
  else
    requeue(id, x)
  end
end

-- End a delivery with its outcome (rule 2: a tombstone takes the marker's place). One that was told to make room for
-- another has either succeeded or been superseded: it is not tried again.
local function finish(id, x, result, detail)
  if x.state == 'r' then
    release_grant(id, x)
  end
  if x.plain then
    return finish_plain(id, x, result)
  end
  if x.stop then
    redis.call('ZREM', base .. 'stop', id)
    result = result == 'succeeded' and result or 'superseded'
  end
  if x.cancelled and result ~= 'succeeded' then
    result = 'revoked'
  end
  withdraw(id, x)
  tombstone(id, x, 's', append(result, id, x, detail, result == 'superseded' and x.by))
  unlock(id, x)
end

-- A worker is lost: back to the front, at most *cap* times (invariant 6). Where the body had already asked for a
-- retry, that is how it ended; one that was told to make room ends here. Returns the number of reaps so far and whether
-- that was too often; 0 where it has ended otherwise.
local function reap(id, x, cap)
  if x.retry then
    finish(id, x, 'retry')
    return 0, false
  elseif x.cancelled then
    cancel(id, x)
    return 0, false
  elseif x.stop then
    supersede(id, x)
    unlock(id, x)
    return 0, false
  end
  x.reaps = (x.reaps or 0) + 1
  if x.plain then
    requeue(id, x)                                    -- past the cap the worker that draws it says that it failed
    return x.reaps, x.reaps > cap
  elseif x.reaps > cap then
    release_grant(id, x)
    conclude(id, x, 'reap_cap')
    unlock(id, x)
    return x.reaps, true
  end
  requeue(id, x)
  return x.reaps, false
end
