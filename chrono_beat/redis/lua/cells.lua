-- Included: plain values (x:, lock:, void:), read together and written together.
--
-- A call from Lua costs the server as much as several values do, so a script fetches all values it will need with one
-- MGET and writes what it changed with one MSET, at its end, by write_cells. In between it sees its own changes.
-- include: lane

local cells, changed, expiries = {}, {}, {}
local UNPACKED = 4000                                 -- values passed to one call; Lua's stack takes some 8000

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
  cells[key], changed[key], expiries[key] = value, true, nil
end

local function write_cells()
  local pairs_, gone = {}, {}
  for key in pairs(changed) do
    if cells[key] then
      pairs_[#pairs_ + 1], pairs_[#pairs_ + 2] = key, cells[key]
    else
      gone[#gone + 1] = key
    end
  end
  for from = 1, #pairs_, UNPACKED do
    redis.call('MSET', unpack(pairs_, from, math.min(#pairs_, from + UNPACKED - 1)))
  end
  for from = 1, #gone, UNPACKED do
    redis.call('DEL', unpack(gone, from, math.min(#gone, from + UNPACKED - 1)))
  end
  for key, ttl_ms in pairs(expiries) do
    redis.call('PEXPIRE', key, ttl_ms)
  end
end
