-- Included: plain values (x:, lock:, void:), read together and written together.
--
-- A call from Lua costs the server as much as several values do, so a script fetches all values it will need with one
-- MGET and writes what it changed with one MSET, at its end, by write_cells. In between it sees its own changes.
-- include: lane

local UNPACKED = 4000                                 -- values passed to one call; Lua's stack takes some 8000

local cells = {}                                      -- key -> value, false where there is none
local written, places_in = {}, {}                     -- key, value, key, value …; key -> where its value is in that list
local removals, expiries = 0, {}

local function fetch(keys)
  local unknown = {}
  for _, key in ipairs(keys) do
    if cells[key] == nil then
      unknown[#unknown + 1] = key
    end
  end
  for from = 1, #unknown, UNPACKED do
    local values = redis.call('MGET', unpack(unknown, from, math.min(#unknown, from + UNPACKED - 1)))
    for i, value in ipairs(values) do
      cells[unknown[from + i - 1]] = value
    end
  end
end

local function get(key)
  local value = cells[key]
  if value == nil then
    value = redis.call('GET', key)
    cells[key] = value
  end
  return value
end

-- Set a value, or remove it (false). An expiry it had goes.
local function put(key, value)
  local at = places_in[key]
  if not at then
    at = #written + 2
    places_in[key], written[at - 1] = at, key
  end
  cells[key], written[at] = value, value
  if not value then
    removals = removals + 1
  end
end

local function expire_after(key, ttl_ms)
  expiries[key] = ttl_ms
end

-- Take out of the list what is to be removed; returns the keys.
local function split_removals()
  local gone, kept = {}, {}
  for i = 1, #written, 2 do
    if written[i + 1] then
      kept[#kept + 1], kept[#kept + 2] = written[i], written[i + 1]
    else
      gone[#gone + 1] = written[i]
    end
  end
  written = kept
  return gone
end

local function write_cells()
  local gone = removals > 0 and split_removals() or {}
  for from = 1, #written, UNPACKED do
    redis.call('MSET', unpack(written, from, math.min(#written, from + UNPACKED - 1)))
  end
  for from = 1, #gone, UNPACKED do
    redis.call('DEL', unpack(gone, from, math.min(#gone, from + UNPACKED - 1)))
  end
  for key, ttl_ms in pairs(expiries) do
    if cells[key] then
      redis.call('PEXPIRE', key, ttl_ms)
    end
  end
  written, places_in, removals, expiries = {}, {}, 0, {}
end
