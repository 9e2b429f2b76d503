-- Let the tenants leave that are first in a pool's line and have nothing there, as a draw would. Where nobody draws any
-- more, as after a move to another pool, what is void or expired is taken away here.
-- KEYS[1]  meta hash of the lane
-- ARGV     pool; limit (tenants and entries looked at in this call)
-- Returns  how many tenants have left
-- include: grants

local pool, looks = ARGV[1], tonumber(ARGV[2])
if not generation or now < quarantine_until then
  return 0
end

local function waits_in_front(tenant)
  local front = base .. 'front:' .. pool .. ':' .. tenant
  while looks > 0 do
    looks = looks - 1
    local id = redis.call('LINDEX', front, 0)
    local x = id and load(id)
    if not id then
      return false
    elseif not x or x.state ~= 'q' or not x.front then
      redis.call('LPOP', front)
    elseif may_run(id, x, payload_of(id, x)) then
      return true
    end
  end
  return true
end

local function waits_in_stream(tenant, prio, from)
  local stream = base .. 's:' .. pool .. ':' .. tenant .. ':' .. prio
  while looks > 0 do
    local wanted = math.min(looks, 50)
    local entries = redis.call('XRANGE', stream, from, '+', 'COUNT', wanted)
    fetch_records(entries)
    for _, entry in ipairs(entries) do
      looks = looks - 1
      from = '(' .. entry[1]
      local x = copy_at(pool, tenant, prio, entry)
      if x and may_run(entry[2][2], x, x.plain and x.payload or entry[2][4]) then
        return true
      end
    end
    if #entries < wanted then
      delete_if_empty(stream)
      return false
    end
  end
  return true
end

-- Say whether the tenant has something to draw. A lock that is freed on the way may bring it something again.
local function waits(tenant)
  local value = places_of(pool, tenant) or ''
  for place in string.gmatch(value, '%S+') do
    local prio, from = string.match(place, '^(%d)=(.+)$')
    local found
    if prio then
      found = waits_in_stream(tenant, prio, from)
    else
      found = waits_in_front(tenant)
    end
    if found then
      return true
    end
    local left = {}
    for other in string.gmatch(places_of(pool, tenant), '%S+') do
      if other ~= place then
        left[#left + 1] = other
      end
    end
    set_places(pool, tenant, #left > 0 and table.concat(left, ' '))
  end
  return places_of(pool, tenant)
end

local ready, at_start, gone = base .. 'ready:' .. pool, floor_of(pool), 0
local line = redis.call('ZRANGE', ready, 0, math.min(looks, 100) - 1, 'WITHSCORES')
for i = 1, #line, 2 do
  looks = looks - 1
  floors[pool] = math.max(floors[pool], tonumber(line[i + 1]))
  if looks < 0 or waits(line[i]) then
    break
  end
  leave(pool, line[i])
  gone = gone + 1
end
write_all()
write_floor(pool, at_start)
return gone
