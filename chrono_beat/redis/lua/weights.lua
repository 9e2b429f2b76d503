-- Tell what the tenants weigh together that are ready in each pool.
-- KEYS[1]  meta hash of the lane
-- ARGV     tenants looked at in a pool; then pools
-- Returns  a number per pool, in order; where more tenants are ready than are looked at, it is estimated from the first
-- include: ready

local sums = {}
for i = 2, #ARGV do
  local ready = base .. 'ready:' .. ARGV[i]
  local tenants = redis.call('ZRANGE', ready, 0, ARGV[1] - 1)
  local sum = 0
  for _, tenant in ipairs(tenants) do
    sum = sum + (redis.call('HGET', base .. 'tenant:' .. tenant, 'weight') or DEFAULT_WEIGHT)
  end
  if #tenants == tonumber(ARGV[1]) then
    sum = math.floor(sum * redis.call('ZCARD', ready) / #tenants)
  end
  sums[i - 1] = sum
end
return sums
