-- Tell what lies aside, the oldest first.
-- KEYS[1]  meta hash of the lane
-- ARGV     limit
-- Returns  per execution: id, job, tenant, pool, task, since when (µs)
-- include: parking

local reply = {}
for _, id in ipairs(redis.call('ZRANGE', base .. 'parked', 0, tonumber(ARGV[1]) - 1)) do
  local x = load_parked(id)
  if x then
    tell(reply, id, x)
  end
end
return reply
