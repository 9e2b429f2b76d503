-- Take away leases that have run out, and requeue their executions; let plain tasks whose time has come into their
-- streams.
-- KEYS[1]  meta hash of the lane
-- ARGV     cap (reaps of one execution); limit (leases looked at in this call)
-- Returns  per execution: id, job, tenant, worker, reaps so far, 1 where that was past the cap else 0
-- include: endings

local reply = {}
if not generation then
  return reply
end
if now >= quarantine_until then
  promote_due(tonumber(ARGV[2]))
end
for _, id in ipairs(redis.call('ZRANGEBYSCORE', base .. 'lease', '-inf', now, 'LIMIT', 0, ARGV[2])) do
  local x = load(id)
  if x and x.state == 'r' then
    local reaps, capped = reap(id, x, tonumber(ARGV[1]))
    if reaps > 0 then
      for _, value in ipairs({id, x.job, x.tenant, x.worker, reaps, capped and 1 or 0}) do
        reply[#reply + 1] = value
      end
    end
  else
    redis.call('ZREM', base .. 'lease', id)
  end
end
write_all()
return reply
