-- Hand out executions that lie aside to a worker that knows their tasks, as far as their tenants have room (invariant
-- 8). They are few, and were first in line when they were drawn, so weights do not matter here.
-- KEYS[1]  meta hash of the lane
-- ARGV     worker; lease (µs); then execution ids
-- Returns  { now (µs), end of the leases (µs), then per delivery: execution id, job, tenant, token, deliveries, payload,
--          pool, record }
-- include: parking

local worker, expires = ARGV[1], now + tonumber(ARGV[2])
local reply, room, leaving = {now, expires}, {}, {}
if not generation or now < quarantine_until then
  return reply                                        -- rules 4 and 5
end

local counter = tonumber(meta[3] or 0)

local function has_room(tenant)
  if not room[tenant] then
    local _, free = limits(tenant)
    room[tenant] = free
  end
  return room[tenant] > 0
end

local function grant(id, x)
  local payload = payload_of(id, x)
  if not may_run(id, x, payload) then
    return
  end
  counter = counter + 1
  sign(id, x, worker, counter)
  redis.call('ZADD', base .. 'lease', expires, id)
  redis.call('SADD', base .. 'own:' .. worker, id)
  redis.call('SADD', base .. 'run:' .. x.tenant, id)
  room[x.tenant] = room[x.tenant] - 1
  for _, value in ipairs({id, x.job, x.tenant, x.token, x.given, payload, x.pool, cells[X .. id]}) do
    reply[#reply + 1] = value
  end
end

for i = 3, #ARGV do
  local id = ARGV[i]
  local x = load_parked(id)
  if x and has_room(x.tenant) then
    grant(id, x)
    leaving[#leaving + 1] = id
  end
end
if #leaving > 0 then
  redis.call('ZREM', base .. 'parked', unpack(leaving))
  redis.call('HSET', KEYS[1], 'counter', counter)
end
write_all()
return reply
