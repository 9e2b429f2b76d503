-- Count the entries that wait for a draw, of some tenants of a pool.
-- KEYS[1]  meta hash of the lane
-- ARGV     pool; then tenants
-- Returns  a number per tenant, in order
-- include: copies

local pool = ARGV[1]

local aside = {}                                      -- tenant -> how many lie aside, since no worker knew their task
for _, id in ipairs(redis.call('ZRANGE', base .. 'parked', 0, -1)) do
  local x = load(id)
  if x and x.state == 'q' and x.parked and x.pool == pool then
    aside[x.tenant] = (aside[x.tenant] or 0) + 1
  end
end

-- An entry stays in its stream until its execution is settled, so those of running ones are taken off.
local function waiting(tenant)
  local count = -(aside[tenant] or 0)
  for prio = 0, 9 do
    count = count + redis.call('XLEN', base .. 's:' .. pool .. ':' .. tenant .. ':' .. prio)
  end
  for _, id in ipairs(redis.call('SMEMBERS', base .. 'run:' .. tenant)) do
    local x = load(id)
    if x and x.pool == pool then
      count = count - 1
    end
  end
  return count
end

local counts = {}
for i = 2, #ARGV do
  counts[#counts + 1] = waiting(ARGV[i])
end
return counts
