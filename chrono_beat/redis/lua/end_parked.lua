-- End what has lain aside for too long, with the outcome "no_worker"; and what must not run any more as ever. Not plain
-- tasks: a worker takes these and says in the result backend that they failed.
-- KEYS[1]  meta hash of the lane
-- ARGV     how long something may lie aside (µs), limit (executions looked at, the oldest first)
-- Returns  per execution that ended so: id, job, tenant, pool, task, since when (µs)
-- include: parking

local reply, patience = {}, tonumber(ARGV[1])
local oldest = generation and redis.call('ZRANGE', base .. 'parked', 0, tonumber(ARGV[2]) - 1) or {}
for _, id in ipairs(oldest) do
  local x = load_parked(id)
  if x and not x.plain and may_run(id, x, payload_of(id, x)) and x.parked_at <= now - patience then
    tell(reply, id, x)
    conclude(id, x, 'no_worker', cjson.encode({error = {
      type = 'NoWorkerForTask', message = 'no worker of ' .. x.pool .. ' knew the task ' .. x.parked, traceback = '',
    }}))
    unlock(id, x)
  end
  if x and not (records[id] and records[id].parked) then
    redis.call('ZREM', base .. 'parked', id)
  end
end
write_all()
return reply
