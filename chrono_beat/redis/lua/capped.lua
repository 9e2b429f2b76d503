-- Say whose work is held back by nothing but a cap, at this moment.
-- KEYS[1]  meta hash of the lane
-- ARGV     tenants looked at in each pool, at most; then pools
-- Returns  { now (µs), tenant, … }; a tenant once
-- include: ready

local most = tonumber(ARGV[1])
local reply, seen = {now}, {}
if not generation or now < quarantine_until then
  return reply                                        -- what holds work back then is something else
end

-- One that runs all it may and has nothing more waits for nothing; places may still name where it has read to.
local function waits(pool, tenant)
  for place in string.gmatch(places_of(pool, tenant) or '', '%S+') do
    local prio, from = string.match(place, '^(%d)=(.*)$')
    local found
    if prio then
      found = #redis.call('XRANGE', base .. 's:' .. pool .. ':' .. tenant .. ':' .. prio, from, '+', 'COUNT', 1) > 0
    else
      found = redis.call('EXISTS', base .. 'front:' .. pool .. ':' .. tenant) == 1
    end
    if found then
      return true
    end
  end
  return false
end

for i = 2, #ARGV do
  for _, tenant in ipairs(redis.call('ZRANGE', base .. 'capped:' .. ARGV[i], 0, most - 1)) do
    if not seen[tenant] and redis.call('HGET', base .. 'tenant:' .. tenant, 'paused') ~= '1'
        and waits(ARGV[i], tenant) then
      seen[tenant] = true
      reply[#reply + 1] = tenant
    end
  end
end
return reply
