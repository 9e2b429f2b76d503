-- Open a closed and swept lane (rules 4 and 5).
-- KEYS[1]  meta hash of the lane
-- ARGV     generation, replication id of the server, quarantine (µs; 0 where nothing of the lane can be running)
-- Returns  1, or 0 where the lane has been opened meanwhile
-- include: lane

if generation then
  return 0
end
local quarantine = tonumber(ARGV[3])
redis.call('HSET', KEYS[1], 'generation', ARGV[1], 'counter', 0, 'replication_id', ARGV[2], 'opened', now,
  'quarantine_until', now + quarantine, 'unknown_before', quarantine > 0 and now or 0, 'delayed', 0)
return 1
