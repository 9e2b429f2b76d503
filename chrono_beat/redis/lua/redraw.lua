-- Grant a delivery anew to the worker that holds it and has not begun it (rule 10): the void is checked again, the old
-- token counts for nothing, a new window begins. What must not start goes back to the front, where the draw sees to it.
-- KEYS[1]  meta hash of the lane
-- ARGV     worker; lease (µs); execution id, token
-- Returns  { now (µs), end of the lease (µs), then if it was granted: execution id, job, tenant, token, deliveries, '' }
-- include: endings

local worker, lease, id, token = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4]
local reply = {now, now + lease}
local x = generation and now >= quarantine_until and load(id)
if not x or x.state ~= 'r' or x.token ~= token or x.worker ~= worker or x.begun == token then
  return reply
end
if x.cancelled or x.stop or voided(x) or expired(x) or redis.call('HGET', base .. 'tenant:' .. x.tenant, 'paused') == '1'
then
  give_back(id, x)
  write_all()
  return reply
end
x.token = generation .. '.' .. redis.call('HINCRBY', KEYS[1], 'counter', 1)
save(id, x)
redis.call('ZADD', base .. 'lease', now + lease, id)
write_cells()
reply[3], reply[4], reply[5], reply[6], reply[7], reply[8] = id, x.job, x.tenant, x.token, x.given, ''
return reply
