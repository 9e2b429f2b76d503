-- Included: what a copy must be to be handed out, and what it gets.
-- include: endings

local function fetch_records(entries)
  local keys = {}
  for _, entry in ipairs(entries) do
    local id = entry[2][2]                            -- whatever the fields are called, there is a first value
    keys[#keys + 1], keys[#keys + 2] = X .. id, VOID .. string.match(id, '^[^:]*')
  end
  if #keys > 0 then
    fetch(keys)
  end
end

-- Return the copy that waits at an entry of a stream; nil where it is a worker's, or waits elsewhere.
local function copy_at(pool, tenant, prio, entry)
  local x = load(entry[2][2])
  if not x or x.entry ~= entry[1] then
    remove_from_stream(pool, tenant, prio, entry[1])  -- nothing points to it: it is not ours
    set_aside('entry ' .. entry[1] .. ' of a stream of ' .. pool .. ' has no record')
  elseif x.state == 'q' and not x.front and not x.parked then
    return x
  end
end

local function delete_if_empty(stream)
  if redis.call('XLEN', stream) == 0 then
    redis.call('DEL', stream)
  end
end

-- After all else of a draw has been written. Where nobody waits any more, the next to come start equal.
local function write_floor(pool, at_start)
  if redis.call('EXISTS', base .. 'ready:' .. pool, base .. 'capped:' .. pool) == 0 then
    redis.call('DEL', base .. 'floor:' .. pool)
  elseif floors[pool] ~= at_start then
    redis.call('SET', base .. 'floor:' .. pool, floors[pool])
  end
end

-- Say whether the copy may run; one that may not is ended.
local function may_run(id, x, payload)
  if not payload or voided(x) then
    drop_voided(id, x)                                -- rule 9; the audit publishes again what lost its entry
    return false
  elseif x.retry then
    finish(id, x, 'retry')                            -- its last body has said so since it was requeued
    return false
  elseif expired(x) then
    expire(id, x)
    return false
  end
  return true
end

-- Hand it out under a token that is greater than any before it (invariant 6), also over a lost Redis.
local function sign(id, x, worker, counter)
  x.state, x.worker, x.given, x.front = 'r', worker, (x.given or 0) + 1, nil
  x.parked, x.parked_at = nil, nil
  x.token = generation .. '.' .. counter
  save(id, x)
end
