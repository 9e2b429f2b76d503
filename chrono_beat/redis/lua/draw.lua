-- Draw executions of a pool by weighted fairness under caps; each gets a lease and a token.
-- KEYS[1]  meta hash of the lane
-- ARGV     pool; credit (executions at most); worker; lease (µs)
-- Returns  { now (µs), end of the leases (µs), then per delivery: execution id, job, tenant, token, deliveries,
--          payload, record (to be brought back after a lost memory) }
-- include: grants

local pool, credit, worker, lease = ARGV[1], tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4])
local reply = {now, now + lease}
if not generation or now < quarantine_until or credit < 1 then
  return reply                                        -- rules 4 and 5
end
promote_due(PROMOTED_BY_DRAW)

-- Looks at tenants and entries in one call; what is left then is drawn by the next one.
local MAX_LOOKS = 2 * credit + 200
-- core.fairness has the same numbers; a test compares them.
local PROMOTED_EVERY = 10
-- Tenants fetched from the sorted set at once.
local WINDOW = math.min(credit, 50) + 1

local ready = base .. 'ready:' .. pool
local counter = tonumber(meta[3] or 0)
local granted, looks = 0, 0
local leases, owned, running = {}, {}, {}
local room, step, weights = {}, {}, {}                -- by tenant
local times = {}                                      -- tenant -> virtual time that is not in the sorted set yet
local at_start = floor_of(pool)

-- -- the line: the first tenants of the sorted set, in its order --

local line, last = {}, nil                            -- {virtual time, tenant}; the last one fetched, nil if all were

local function before(a, b)
  return a[1] < b[1] or (a[1] == b[1] and a[2] < b[2])
end

local function write_times()
  local flat = {}
  for tenant, time in pairs(times) do
    flat[#flat + 1], flat[#flat + 2] = time, tenant
  end
  if #flat > 0 then
    redis.call('ZADD', ready, unpack(flat))
  end
  times = {}
end

local function fetch_line()
  write_times()
  local flat = redis.call('ZRANGE', ready, 0, WINDOW - 1, 'WITHSCORES')
  local tenants = {}
  line = {}
  for i = 1, #flat, 2 do
    line[#line + 1] = {tonumber(flat[i + 1]), flat[i]}
    tenants[#tenants + 1] = flat[i]
  end
  last = #line == WINDOW and {line[#line][1], line[#line][2]} or nil
  if #tenants > 0 then
    for _, tenant in ipairs(tenants) do
      if places[pool] and places[pool][tenant] ~= nil then
        return                                        -- some are known already, with changes
      end
    end
    fetch_places(pool, tenants)
  end
end

-- Put a tenant that stays in line in its place; one that belongs behind what was fetched is found there later.
local function insert(turn)
  times[turn[2]] = turn[1]
  if last and before(last, turn) then
    return
  end
  local at = #line + 1
  while at > 1 and before(turn, line[at - 1]) do
    at = at - 1
  end
  table.insert(line, at, turn)
end

-- -- a tenant's copies --

local function take_front(tenant, count, taken)
  local wanted, ids
  repeat
    wanted = count - #taken
    ids = redis.call('LPOP', base .. 'front:' .. pool .. ':' .. tenant, wanted) or {}
    for _, id in ipairs(ids) do
      looks = looks + 1
      local x = load(id)
      if x and x.state == 'q' and x.front then
        taken[#taken + 1] = {id, x, payload_of(id, x)}
      end
    end
  until #ids < wanted or #taken == count
  return #ids < wanted
end

-- Read a stream; returns where to go on, nil where it is at its end.
local function take_stream(tenant, prio, from, count, taken)
  local stream = base .. 's:' .. pool .. ':' .. tenant .. ':' .. prio
  while #taken < count do
    local wanted = count - #taken
    local entries = redis.call('XRANGE', stream, from, '+', 'COUNT', wanted)
    fetch_records(entries)
    for _, entry in ipairs(entries) do
      looks = looks + 1
      from = '(' .. entry[1]
      local x = copy_at(pool, tenant, prio, entry)
      if x then
        taken[#taken + 1] = {entry[2][2], x, entry[2][4]}
      end
    end
    if #entries < wanted then
      delete_if_empty(stream)
      return nil
    end
  end
  return from
end

-- Take up to *count* copies of a tenant, give-backs first, then by priority, and note what is left. Where several
-- priorities wait, each tenth of the tenant's grants goes through them in another order (core/fairness.py), so that none
-- is left waiting for ever.
local function take(tenant, count)
  local taken, left = {}, {}
  local value = places_of(pool, tenant) or ''
  local start
  if string.find(value, ' %d=') then
    local before = turns[pool][tenant]
    local since = before % PROMOTED_EVERY
    if since == PROMOTED_EVERY - 1 then
      count, start = 1, 9 - math.floor(before / PROMOTED_EVERY) % 10
    else
      count = math.min(count, PROMOTED_EVERY - 1 - since)
    end
  end
  if string.sub(value, 1, 1) == 'f' or string.find(value, ' f', 1, true) then
    if not take_front(tenant, count, taken) then
      left[1] = 'f'
    end
  end
  for nth = 0, 9 do
    local prio = start and (start - nth) % 10 or nth
    local from = string.match(value, prio .. '=(%S+)')
    if from and #taken < count then
      from = take_stream(tenant, prio, from, count, taken)
    end
    if from then
      left[#left + 1] = prio .. '=' .. from
    end
  end
  local now_left = #left > 0 and table.concat(left, ' ')
  if now_left ~= value then
    set_places(pool, tenant, now_left)
  end
  return taken
end

local function grant(id, x, payload)
  payload = x.plain and x.payload or payload
  if not may_run(id, x, payload) then
    return false
  end
  counter = counter + 1
  sign(id, x, worker, counter)
  granted = granted + 1
  leases[2 * granted - 1], leases[2 * granted] = now + lease, id
  owned[granted] = id
  keep(running, x.tenant, id)
  local n = #reply
  reply[n + 1], reply[n + 2], reply[n + 3] = id, x.job, x.tenant
  reply[n + 4], reply[n + 5], reply[n + 6], reply[n + 7] = x.token, x.given, payload, cells[X .. id]
  return true
end

-- -- the draw --

local function set_aside(turn)
  redis.call('ZREM', ready, turn[2])
  redis.call('ZADD', base .. 'capped:' .. pool, turn[1], turn[2])
  redis.call('SADD', base .. 'held:' .. turn[2], pool)
  times[turn[2]] = nil
end

-- How many the first in line may take before the next one is first.
local function share(turn, most)
  local next_time = line[1] and line[1][1] or last and last[1]
  if not next_time then
    return most
  end
  local count, time = 1, turn[1] + step[turn[2]]
  while count < most and time < next_time do
    count, time = count + 1, time + step[turn[2]]
  end
  return count
end

local function draw_from(turn)
  local tenant = turn[2]
  if not room[tenant] then
    weights[tenant], room[tenant] = limits(tenant)
    step[tenant] = 1 / weights[tenant]
  end
  floors[pool] = math.max(floors[pool], turn[1])
  if room[tenant] < 1 then
    return set_aside(turn)
  end
  local count = share(turn, math.min(room[tenant], credit - granted))
  for _, copy in ipairs(take(tenant, count)) do
    floors[pool] = math.max(floors[pool], turn[1])
    if grant(copy[1], copy[2], copy[3]) then
      room[tenant] = room[tenant] - 1
      turn[1] = turn[1] + step[tenant]
      set_turns(pool, tenant, (turns[pool][tenant] + 1) % (10 * PROMOTED_EVERY))
    end
  end
  -- Also one without places stays until it is first again: so it leaves at the floor.
  if places_of(pool, tenant) then
    return insert(turn)
  end
  if line[1] and before(line[1], turn) or not line[1] and last and before(last, turn) then
    return insert(turn)
  end
  floors[pool] = math.max(floors[pool], turn[1])
  leave(pool, tenant)
  times[tenant] = nil
end

while granted < credit and looks < MAX_LOOKS do
  if #line == 0 then
    fetch_line()
    if #line == 0 then
      break
    end
  end
  looks = looks + 1
  draw_from(table.remove(line, 1))
end

if granted > 0 then
  redis.call('HSET', KEYS[1], 'counter', counter)
  redis.call('ZADD', base .. 'lease', unpack(leases))
  redis.call('SADD', base .. 'own:' .. worker, unpack(owned))
  for tenant, ids in pairs(running) do
    redis.call('SADD', base .. 'run:' .. tenant, unpack(ids))
  end
end
write_times()
touched[pool] = true                                  -- another idle worker goes on where this one's credit ended
write_all()
write_floor(pool, at_start)
return reply
