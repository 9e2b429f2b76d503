-- Lay deliveries aside whose task their worker does not know: as if they had never been handed out, but not to be drawn
-- by the next one that comes. A worker that knows the task takes them by name (draw_parked).
-- KEYS[1]  meta hash of the lane
-- ARGV     per delivery: execution id, token, name of the task
-- Returns  how many were held under that token
-- include: endings

local function lay_aside(id, x, task)
  unhand(x)
  if x.cancelled then
    cancel(id, x)
    return
  elseif x.stop then                                      -- it was told to make room for another
    supersede(id, x)
    unlock(id, x)
    return
  end
  release_grant(id, x)
  x.state, x.front, x.parked, x.parked_at = 'q', nil, task, x.parked_at or now
  save(id, x)
  redis.call('ZADD', base .. 'parked', x.parked_at, id)
end

local laid = 0
for i = 1, generation and #ARGV or 0, 3 do
  local x = load(ARGV[i])
  if x and x.state == 'r' and x.token == ARGV[i + 1] then
    lay_aside(ARGV[i], x, ARGV[i + 2])
    laid = laid + 1
  end
end
write_all()
return laid
