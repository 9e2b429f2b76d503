-- Prolong leases. One that has run out and was requeued, but not granted again, is taken back: its body is running. Not
-- where its tenant has filled the slot meanwhile (invariant 8): then it is as lost as one that was granted again.
-- KEYS[1]  meta hash of the lane
-- ARGV     worker; lease (µs); then per delivery: execution id, token
-- Returns  { end of the leases (µs), 0 where the lane has no generation; the execution ids for which a newer grant
--          exists, which the worker itself reported lost, or which have ended without it since their lease ran out
--          (it must not think it still has one, and bring it back); those that the lane does not know }
-- include: ready

local worker, expires = ARGV[1], now + tonumber(ARGV[2])
local lost, unknown, keys = {}, {}, {}

local function is_over_cap(x)
  if x.state ~= 'q' and x.state ~= 'd' then
    return false
  end
  local _, _, room = limits(x.tenant)
  return room < 1
end

local function take_back(id, x)
  if x.state == 'd' then
    redis.call('ZREM', base .. 'delayed', id)         -- it was running when the lane's generation ended
  else
    redis.call('LREM', front_of(x), 1, id)
  end
  x.state, x.worker, x.front = 'r', worker, nil
  save(id, x)
  redis.call('SADD', base .. 'run:' .. x.tenant, id)
  redis.call('SADD', base .. 'own:' .. worker, id)
end

for i = 3, #ARGV, 2 do
  keys[#keys + 1] = X .. ARGV[i]
end
fetch(keys)
for i = 3, generation and #ARGV or 0, 2 do
  local id, token = ARGV[i], ARGV[i + 1]
  local x = load(id)
  if not x then
    unknown[#unknown + 1] = id
  elseif x.token ~= token or x.lost == token or x.state == 'x' or x.state == 'v' or is_over_cap(x) then
    lost[#lost + 1] = id
  elseif x.state == 'r' or x.state == 'q' or x.state == 'd' then
    if x.state ~= 'r' then
      take_back(id, x)
    end
    redis.call('ZADD', base .. 'lease', expires, id)
  end
end
write_cells()
return {generation and expires or 0, lost, unknown}
