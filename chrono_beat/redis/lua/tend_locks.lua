-- Do what time asks for at the locks: withdraw grants whose holder was told to make room and whose grace is over, and
-- end what waits, or stands in the way unread, past its expiry.
-- KEYS[1]  meta hash of the lane
-- ARGV     limit (executions of each kind looked at in this call)
-- Returns  per running execution that was told to make room: execution id, token, worker, 1 where its grant has been
--          withdrawn now, else 0 (tell it again)
-- include: endings

local reply = {}
if not generation then
  return reply
end

for _, id in ipairs(redis.call('ZRANGE', base .. 'stop', 0, tonumber(ARGV[1]) - 1)) do
  local x = load(id)
  if x and x.state == 'r' and x.stop then
    local over = x.stop <= now
    for _, value in ipairs({id, x.token, x.worker, over and 1 or 0}) do
      reply[#reply + 1] = value
    end
    if over then
      supersede(id, x)
      unlock(id, x)
    end
  else
    redis.call('ZREM', base .. 'stop', id)
  end
end

for _, id in ipairs(redis.call('ZRANGEBYSCORE', base .. 'ends', '-inf', now, 'LIMIT', 0, ARGV[1])) do
  local x = load(id)
  redis.call('ZREM', base .. 'ends', id)
  if x and (x.state == 'w' or x.state == 'q') then
    if voided(x) then
      drop_voided(id, x)
    elseif x.retry then
      finish(id, x, 'retry')
    elseif expired(x) then
      expire(id, x)
    end
  end
end
write_all()
return reply
