-- From now on no copy of a job older than this version is published or drawn. Never lowered.
-- KEYS[1]  meta hash of the lane
-- ARGV     job, version, how long to remember it (ms; longer than any copy is trusted)
-- Returns  the version that is in force
-- include: lane

local key = base .. 'void:' .. ARGV[1]
local version = ARGV[2]
local before = redis.call('GET', key)
if before and tonumber(before) > tonumber(version) then
  version = before
end
redis.call('SET', key, version, 'PX', ARGV[3])
return version
