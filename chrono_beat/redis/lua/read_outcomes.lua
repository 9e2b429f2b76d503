-- Read the oldest outcomes, if the lane is this reader's: one reads at a time, so they are recorded in order (rule 14).
-- KEYS[1]  meta hash of the lane
-- ARGV     reader, its lease (µs), limit (entries)
-- Returns  false where another reader has the lane, else stream entries
-- include: lane

local key = base .. 'reader'
local lease = redis.call('HMGET', key, 'name', 'until')
if lease[1] and lease[1] ~= ARGV[1] and tonumber(lease[2]) > now then
  return false
end
local lasts = tonumber(ARGV[2])
redis.call('HSET', key, 'name', ARGV[1], 'until', now + lasts)
redis.call('PEXPIRE', key, math.max(1, math.ceil(lasts / 1000)))
return redis.call('XRANGE', base .. 'out', '-', '+', 'COUNT', ARGV[3])
