-- Draw executions of a pool by weighted fairness under caps; each gets a lease and a token.
-- KEYS[1]  meta hash of the lane
-- ARGV     pool; credit (executions at most); worker; lease (µs)
-- Returns  { now (µs), end of the leases (µs), then per delivery: execution id, job, tenant, token, deliveries, payload }
-- include: endings

local pool, credit, worker, lease = ARGV[1], tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4])
local reply = {now, now + lease}
if not generation or now < quarantine_until or credit < 1 then
  return reply                                        -- rules 4 and 5
end

-- Looks at tenants and entries in one call; what is left then is drawn by the next one.
local MAX_LOOKS = 2 * credit + 200

local ready, prios, capped = base .. 'ready:' .. pool, base .. 'prios:' .. pool, base .. 'capped:' .. pool
local counter = tonumber(meta[3] or 0)
local granted, looks = 0, 0
local leases, owned, running = {}, {}, {}
local known = {}                                      -- tenant -> {weight, room}
local at_start = floor_of(pool)

local function read_stream(stream, count)
  local got = redis.pcall('XREADGROUP', 'GROUP', GROUP, CONSUMER, 'COUNT', count, 'STREAMS', stream, '>')
  if got and got.err then                             -- the group is made by the first draw, not by every publish
    if redis.call('EXISTS', stream) == 0 then
      return {}
    end
    redis.call('XGROUP', 'CREATE', stream, GROUP, '0')
    got = redis.call('XREADGROUP', 'GROUP', GROUP, CONSUMER, 'COUNT', count, 'STREAMS', stream, '>')
  end
  return got and got[1][2] or {}
end

local function take_front(tenant, count, taken)
  local wanted, ids
  repeat
    wanted = count - #taken
    ids = redis.call('LPOP', base .. 'front:' .. pool .. ':' .. tenant, wanted) or {}
    for _, id in ipairs(ids) do
      looks = looks + 1
      local x = load(id)
      if x and x.state == 'q' and x.front then
        taken[#taken + 1] = {id, x, payload_of(x)}
      end
    end
  until #ids < wanted or #taken == count
end

-- Take up to *count* copies of a tenant, give-backs first, then by priority. Also says whether nothing is left.
local function take(tenant, count)
  local taken = {}
  take_front(tenant, count, taken)
  local digits = redis.call('HGET', prios, tenant) or ''
  local left = digits
  for prio in string.gmatch(digits, '%d') do
    local wanted = count - #taken
    if wanted <= 0 then
      break
    end
    local stream = base .. 's:' .. pool .. ':' .. tenant .. ':' .. prio
    local entries = read_stream(stream, wanted)
    if #entries < wanted then
      left = string.gsub(left, prio, '')
    end
    for _, entry in ipairs(entries) do
      looks = looks + 1
      local id = entry[2][2]
      local x = load(id)
      if x and x.state == 'q' and x.entry == entry[1] then
        taken[#taken + 1] = {id, x, entry[2][4]}
      elseif not (x and x.entry == entry[1]) then     -- nothing points to it
        remove_entry(id, {entry = entry[1], pool = pool, tenant = tenant, prio = prio})
      end
    end
  end
  if left == '' then
    redis.call('HDEL', prios, tenant)
  elseif left ~= digits then
    redis.call('HSET', prios, tenant, left)
  end
  return taken, left == ''
end

local function grant(id, x, payload)
  if not payload or voided(x) then
    drop_voided(id, x)                                -- rule 9; the audit publishes again what lost its entry
    return false
  elseif expired(x) then
    expire(id, x)
    return false
  end
  counter = counter + 1
  local token = generation .. '.' .. counter          -- invariant 6: grows, also over a lost Redis
  local given = (x.given or 0) + 1
  redis.call('HSET', base .. 'x:' .. id, 'state', 'r', 'token', token, 'worker', worker, 'given', given)
  if x.front then
    redis.call('HDEL', base .. 'x:' .. id, 'front')
  end
  granted = granted + 1
  leases[2 * granted - 1], leases[2 * granted] = now + lease, id
  owned[granted] = id
  running[x.tenant] = running[x.tenant] or {}
  table.insert(running[x.tenant], id)
  for _, value in ipairs({id, x.job, x.tenant, token, given, payload}) do
    reply[#reply + 1] = value
  end
  return true
end

local function set_aside(tenant, virtual_time)
  redis.call('ZREM', ready, tenant)
  redis.call('ZADD', capped, virtual_time, tenant)
  redis.call('SADD', base .. 'held:' .. tenant, pool)
end

-- How many the first in line may take before the next one is first. A tie goes back to the sorted set, which knows the order.
local function share(virtual_time, next_time, step, most)
  if not next_time then
    return most
  end
  local count, time = 1, virtual_time + step
  while count < most and time < next_time do
    count, time = count + 1, time + step
  end
  return count
end

local function draw_from(tenant, virtual_time, next_time)
  floors[pool] = math.max(floor_of(pool), virtual_time)
  if not known[tenant] then
    local weight, room = limits(tenant)
    known[tenant] = {weight, room}
  end
  local step, room = 1 / known[tenant][1], known[tenant][2]
  if room < 1 then
    return set_aside(tenant, virtual_time)
  end
  local taken, empty = take(tenant, share(virtual_time, next_time, step, math.min(room, credit - granted)))
  for _, copy in ipairs(taken) do
    floors[pool] = math.max(floors[pool], virtual_time)
    if grant(copy[1], copy[2], copy[3]) then
      known[tenant][2] = known[tenant][2] - 1
      virtual_time = virtual_time + step
    end
  end
  if empty and redis.call('HEXISTS', prios, tenant) == 0 then       -- a lock handed over may have brought a new entry
    floors[pool] = math.max(floors[pool], virtual_time)
    redis.call('ZREM', ready, tenant)
  else
    redis.call('ZADD', ready, virtual_time, tenant)
  end
end

while granted < credit and looks < MAX_LOOKS do
  local line = redis.call('ZRANGE', ready, 0, 1, 'WITHSCORES')
  if #line == 0 then
    break
  end
  looks = looks + 1
  draw_from(line[1], tonumber(line[2]), tonumber(line[4]))
end

if granted > 0 then
  redis.call('HSET', KEYS[1], 'counter', counter)
  redis.call('ZADD', base .. 'lease', unpack(leases))
  redis.call('SADD', base .. 'own:' .. worker, unpack(owned))
  for tenant, ids in pairs(running) do
    redis.call('SADD', base .. 'run:' .. tenant, unpack(ids))
  end
end
if redis.call('EXISTS', ready, capped) == 0 then
  redis.call('DEL', base .. 'floor:' .. pool)         -- nobody waits: the next to come start equal
elseif floors[pool] ~= at_start then
  redis.call('SET', base .. 'floor:' .. pool, floors[pool])
end
wake(pool)                                            -- another idle worker goes on where this one's credit ended
return reply
