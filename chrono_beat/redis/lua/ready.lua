-- Included: which tenants of a pool can be drawn from, their virtual times, and waking idle workers.
--
-- A tenant with entries that nobody has drawn is in exactly one of two sorted sets, with its virtual time as score:
-- ready:<pool>, or capped:<pool> while it is paused or runs as much as it may. places:<pool> says where its entries
-- are, after a number: how many grants of the tenant in this pool there were since it entered, without the hundreds. Its
-- field goes when the tenant leaves. floor:<pool> is the virtual time of the pool:
-- nobody enters below it, so an idle tenant has not saved up credit; and a tenant leaves only when it is first in
-- line, at the floor, so one that drains and comes back at once has gained nothing. core/fairness.py is the same in
-- Python.
-- include: copies

-- core.fairness has the same numbers; a test compares them.
local DEFAULT_WEIGHT, DEFAULT_MAX_RUNNING = 1, 20

local floors = {}                                     -- pool -> virtual time
local places, turns = {}, {}                          -- pool -> tenant -> places; grants
local placed = {}                                     -- pool -> tenant -> true where these have changed
local entering, touched = {}, {}                      -- pool -> {virtual time, tenant, …}; pools with new work
local released = {lease = {}, own = {}, run = {}}     -- grants that were given up

local function floor_of(pool)
  if not floors[pool] then
    floors[pool] = tonumber(redis.call('GET', base .. 'floor:' .. pool) or 0)
  end
  return floors[pool]
end

-- Where a tenant's undrawn entries are: words, "f" for the front list, "5=<id>" for the stream of priority 5, to be
-- read from that id on ("(" before it: behind it). False where it has none.
local function note_places(pool, tenant, value)
  local count, words = string.match(value or '', '^(%d+) (.*)$')
  places[pool][tenant] = words and words ~= '' and words
  turns[pool][tenant] = tonumber(count or 0)
end

local function places_of(pool, tenant)
  if not places[pool] then
    places[pool], turns[pool] = {}, {}
  end
  if places[pool][tenant] == nil then
    note_places(pool, tenant, redis.call('HGET', base .. 'places:' .. pool, tenant))
  end
  return places[pool][tenant]
end

local function note_change(pool, tenant)
  placed[pool] = placed[pool] or {}
  placed[pool][tenant] = true
end

local function set_places(pool, tenant, value)
  places[pool][tenant] = value
  note_change(pool, tenant)
end

local function set_turns(pool, tenant, count)
  if turns[pool][tenant] ~= count then
    turns[pool][tenant] = count
    note_change(pool, tenant)
  end
end

local function fetch_places(pool, tenants)
  local found = redis.call('HMGET', base .. 'places:' .. pool, unpack(tenants))
  places[pool], turns[pool] = places[pool] or {}, turns[pool] or {}
  for i, tenant in ipairs(tenants) do
    note_places(pool, tenant, found[i])
  end
end

local function enter(pool, tenant, virtual_time)
  local line = entering[pool]
  if not line then
    line = {}
    entering[pool] = line
  end
  line[#line + 1], line[#line + 2] = math.max(floor_of(pool), virtual_time), tenant
end

-- Take a tenant without work out of the line.
local function leave(pool, tenant)
  redis.call('ZREM', base .. 'ready:' .. pool, tenant)
  set_turns(pool, tenant, 0)
end

-- Note that the tenant has work at a place: "f", or a priority and where to read on from.
local function make_ready(pool, tenant, mark, from)
  local value = places_of(pool, tenant)
  touched[pool] = true
  if not value then
    set_places(pool, tenant, mark .. from)
    enter(pool, tenant, 0)
  elseif not string.find(value, mark, 1, true) then
    set_places(pool, tenant, value .. ' ' .. mark .. from)
  end
end

-- Say whether whoever reads a stream on from there never meets the entry.
local function is_passed(entry, from)
  local ms, seq = string.match(entry, '^(%d+)-(%d+)$')
  local from_ms, from_seq = string.match(from, '(%d+)-(%d+)$')
  if not from_ms then
    return false
  end
  ms, seq, from_ms, from_seq = tonumber(ms), tonumber(seq), tonumber(from_ms), tonumber(from_seq)
  return ms < from_ms or ms == from_ms and (seq < from_seq or seq == from_seq and string.sub(from, 1, 1) == '(')
end

-- Let the draw read a stream from its beginning once: what was granted is passed over.
local function read_anew(pool, tenant, prio)
  set_places(pool, tenant, (string.gsub(places_of(pool, tenant), prio .. '=%S+', prio .. '=-')))
end

local grown = {}                                      -- streams to which this script has added

local function add_entry(id, x, payload)
  local stream, mark = stream_of(x), x.prio .. '='
  x.entry = redis.call('XADD', stream, '*', 'e', id, 'p', payload)
  x.since = now
  make_ready(x.pool, x.tenant, mark, x.entry)
  if not grown[stream] then
    -- Invariant 4: ids begin anew after somebody deleted the stream, maybe below the one to be read from.
    grown[stream] = true
    if is_passed(x.entry, string.match(places_of(x.pool, x.tenant), mark .. '(%S+)') or '-') then
      read_anew(x.pool, x.tenant, x.prio)
    end
  end
end

local function has_place(pool, tenant, mark)
  local value = places_of(pool, tenant)
  return value and string.find(value, mark, 1, true)
end

-- An empty stream would stay for ever, so it is deleted; but not while the draw remembers how far it has read: a new
-- stream of the same name may give the same entry id again within a millisecond. Then the draw deletes it.
local function remove_from_stream(pool, tenant, prio, entry)
  local stream = base .. 's:' .. pool .. ':' .. tenant .. ':' .. prio
  redis.call('XDEL', stream, entry)
  if redis.call('XLEN', stream) == 0 and not has_place(pool, tenant, prio .. '=') then
    redis.call('DEL', stream)
  end
end

local function remove_entry(id, x)
  if x.front then
    redis.call('LREM', front_of(x), 1, id)
  end
  if x.entry then
    remove_from_stream(x.pool, x.tenant, x.prio, x.entry)
  end
end

-- Invariant 8: weight and room of a tenant; no room while it is paused, which the third value leaves out of account.
-- run:<tenant> is a set, so nothing can drift.
local function limits(tenant)
  local row = redis.call('HMGET', base .. 'tenant:' .. tenant, 'weight', 'max_running', 'paused')
  local room = tonumber(row[2] or DEFAULT_MAX_RUNNING) - redis.call('SCARD', base .. 'run:' .. tenant)
  if row[3] == '1' then
    return 1, 0, room
  end
  return tonumber(row[1] or DEFAULT_WEIGHT), room, room
end

-- Where a slot or the limits of a tenant changed: it can be drawn from again in every pool that set it aside.
local function uncap(tenant)
  local held = base .. 'held:' .. tenant
  local pools = redis.call('SMEMBERS', held)
  if #pools == 0 then
    return
  end
  local _, room = limits(tenant)
  if room > 0 then
    redis.call('DEL', held)
    for _, pool in ipairs(pools) do
      local virtual_time = redis.call('ZSCORE', base .. 'capped:' .. pool, tenant)
      if virtual_time then
        redis.call('ZREM', base .. 'capped:' .. pool, tenant)
        enter(pool, tenant, tonumber(virtual_time))
        touched[pool] = true
      end
    end
  end
end

local function keep(list, key, value)
  list[key] = list[key] or {}
  table.insert(list[key], value)
end

-- Lease, slot and ownership of a running execution are given up together.
local function release_grant(id, x)
  table.insert(released.lease, id)
  keep(released.own, x.worker, id)
  keep(released.run, x.tenant, id)
end

local function write_released()
  if #released.lease == 0 then
    return
  end
  redis.call('ZREM', base .. 'lease', unpack(released.lease))
  for worker, ids in pairs(released.own) do
    redis.call('SREM', base .. 'own:' .. worker, unpack(ids))
  end
  for tenant, ids in pairs(released.run) do
    redis.call('SREM', base .. 'run:' .. tenant, unpack(ids))
    uncap(tenant)
  end
end

-- At most one token lies in a pool's wake list: a draw that leaves work behind puts the next one there.
local function wake(pool)
  if redis.call('EXISTS', base .. 'ready:' .. pool) == 1 and redis.call('LLEN', base .. 'wake:' .. pool) == 0 then
    redis.call('RPUSH', base .. 'wake:' .. pool, '1')
  end
end

local function write_places(pool, tenants)
  local sets, gone = {}, {}
  for tenant in pairs(tenants) do
    local value, count = places[pool][tenant], turns[pool][tenant]
    if value or count > 0 then
      sets[#sets + 1], sets[#sets + 2] = tenant, count .. ' ' .. (value or '')
    else
      gone[#gone + 1] = tenant
    end
  end
  if #sets > 0 then
    redis.call('HSET', base .. 'places:' .. pool, unpack(sets))
  end
  if #gone > 0 then
    redis.call('HDEL', base .. 'places:' .. pool, unpack(gone))
  end
end

-- Every script that moves copies ends with this: all that was noted is written.
local function write_all()
  write_cells()
  write_released()
  for pool, tenants in pairs(placed) do
    write_places(pool, tenants)
  end
  for pool, line in pairs(entering) do
    redis.call('ZADD', base .. 'ready:' .. pool, 'NX', unpack(line))
  end
  for pool in pairs(touched) do
    wake(pool)
  end
end
