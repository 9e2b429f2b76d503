-- Set limits of tenants. What is older than what is known changes nothing.
-- KEYS[1]  meta hash of the lane
-- ARGV     per tenant: name, weight, max_running, paused (1 or 0), when they were changed (µs)
-- Returns  how many were set
-- include: ready

local set = 0
for i = 1, #ARGV, 5 do
  local key = base .. 'tenant:' .. ARGV[i]
  local changed = redis.call('HGET', key, 'changed')
  if not changed or tonumber(changed) <= tonumber(ARGV[i + 4]) then
    redis.call('HSET', key, 'weight', ARGV[i + 1], 'max_running', ARGV[i + 2], 'paused', ARGV[i + 3],
      'changed', ARGV[i + 4])
    uncap(ARGV[i])
    set = set + 1
  end
end
write_all()
return set
