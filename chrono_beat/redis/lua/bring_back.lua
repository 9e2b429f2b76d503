-- Rule 5: take back, in quarantine, the grants of a lost generation whose holders say so; those of plain tasks at any
-- time.
-- KEYS[1]  meta hash of the lane
-- ARGV     worker; lease (µs); then per delivery: execution id, token, end of its lease as the worker knows it (µs),
--          record (as the draw has packed it)
-- Returns  the execution ids that the worker holds again
-- include: mending

local worker, lease = ARGV[1], tonumber(ARGV[2])
local back = {}
if not generation then
  return back
end

-- Tokens are <generation>.<counter>.
local function is_older(token, other)
  local generation_a, counter_a = string.match(token, '^(%d+)%.(%d+)$')
  local generation_b, counter_b = string.match(other, '^(%d+)%.(%d+)$')
  if not generation_a or not generation_b then
    return false
  end
  generation_a, generation_b = tonumber(generation_a), tonumber(generation_b)
  return generation_a < generation_b or generation_a == generation_b and tonumber(counter_a) < tonumber(counter_b)
end

local function restore(id, token, packed)
  local x = unpacked(packed)
  if not x or x.token ~= token then
    return false
  end
  x.state, x.worker, x.entry, x.front = 'r', worker, nil, nil            -- its entry went with the stream
  mend_locks(id, x)
  save(id, x)
  redis.call('ZADD', base .. 'lease', now + lease, id)
  redis.call('SADD', base .. 'run:' .. x.tenant, id)
  redis.call('SADD', base .. 'own:' .. worker, id)
  return true
end

local function bring_back(id, token, expires, packed)
  local known = load(id)
  if known and known.token == token then
    return known.state == 'r'                         -- a repeat of this call
  elseif tonumber(expires) <= now then
    return false
  elseif known then
    if known.state ~= 'r' or not is_older(known.token, token) then
      return false                                    -- a newer grant, or an outcome
    end
    redis.call('SREM', base .. 'own:' .. known.worker, id)
  end
  return restore(id, token, packed)
end

local keys = {}
for i = 3, #ARGV, 4 do
  keys[#keys + 1] = X .. ARGV[i]
end
fetch(keys)
local plain_came_back = false
for i = 3, #ARGV, 4 do
  local is_plain = string.sub(ARGV[i], 1, #PLAIN) == PLAIN
  local open = now < quarantine_until or is_plain     -- nobody publishes that one anew
  if open and bring_back(ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3]) then
    back[#back + 1] = ARGV[i]
    plain_came_back = plain_came_back or is_plain
  end
end
if plain_came_back then
  redis.call('HSET', KEYS[1], 'has_plain_tasks', 1)
end
write_all()
return back
