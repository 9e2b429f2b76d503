-- Say whether a token is the last grant of its execution and its lease has not run out.
-- KEYS[1]  meta hash of the lane
-- ARGV     execution id, token
-- Returns  1 or 0
-- include: copies

local x = generation and load(ARGV[1])
local expires = redis.call('ZSCORE', base .. 'lease', ARGV[1])
if x and x.state == 'r' and x.token == ARGV[2] and expires and tonumber(expires) > now then
  return 1
end
return 0
