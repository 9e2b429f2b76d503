-- Publish plain tasks; idempotent by copy id, so by message. Also in quarantine and where the lane has no generation:
-- they are drawn when it is over.
-- KEYS[1]  meta hash of the lane
-- ARGV     per task: copy id, tenant, pool, priority (0-9), due (µs), how long from now on it must wait (µs), payload
-- Returns  a letter per task: p published, a already
-- include: delays

redis.call('HSET', KEYS[1], 'has_plain_tasks', 1)

local ITEM = 7
local keys = {}
for i = 1, #ARGV, ITEM do
  keys[#keys + 1] = X .. ARGV[i]
end
fetch(keys)

local replies = {}
for i = 1, #ARGV, ITEM do
  local id = ARGV[i]
  if load(id) then
    replies[#replies + 1] = 'a'
  else
    local x = {
      state = 'q', ver = 0, job = '', tenant = ARGV[i + 1], plain = true, pool = ARGV[i + 2], prio = ARGV[i + 3],
      payload = ARGV[i + 6],
    }
    local due = math.max(tonumber(ARGV[i + 4]), now + tonumber(ARGV[i + 5]))
    if not generation then
      due = math.max(due, now + 1)                    -- a sweep may be under way, which leaves what is delayed alone
    end
    await(id, x, due)
    replies[#replies + 1] = 'p'
  end
end
write_all()
return table.concat(replies)
