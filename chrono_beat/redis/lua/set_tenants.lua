-- Set limits of tenants. What is older than what is known changes nothing. The defaults need no key: where they are set,
-- it stays for a while only, lest an older change that comes late be taken for news.
-- KEYS[1]  meta hash of the lane
-- ARGV     how long limits are kept unless they are told again (ms), and how long the defaults (ms); then per tenant:
--          name, weight, max_running, paused (1 or 0), when they were changed (µs)
-- Returns  how many were set
-- include: ready

local KEPT_MS, DEFAULT_KEPT_MS = tonumber(ARGV[1]), tonumber(ARGV[2])

local function is_default(i)
  return tonumber(ARGV[i + 1]) == DEFAULT_WEIGHT and tonumber(ARGV[i + 2]) == DEFAULT_MAX_RUNNING and ARGV[i + 3] == '0'
end

local set = 0
for i = 3, #ARGV, 5 do
  local key, default = base .. 'tenant:' .. ARGV[i], is_default(i)
  local changed, at = redis.call('HGET', key, 'changed'), tonumber(ARGV[i + 4])
  local needless = not changed and default and at < now - DEFAULT_KEPT_MS * 1000
  if not needless and (not changed or tonumber(changed) <= at) then
    redis.call('HSET', key, 'weight', ARGV[i + 1], 'max_running', ARGV[i + 2], 'paused', ARGV[i + 3], 'changed', ARGV[i + 4])
    redis.call('PEXPIRE', key, default and DEFAULT_KEPT_MS or KEPT_MS)
    uncap(ARGV[i])
    set = set + 1
  end
end
write_all()
return set
