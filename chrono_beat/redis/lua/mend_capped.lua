-- Let tenants of a pool back into line for which there is room, though nothing said so: the limits of one that was deleted
-- have gone, or somebody has deleted a key (invariant 4). Looks at some, at others each time.
-- KEYS[1]  meta hash of the lane
-- ARGV     pool; tenants looked at; slots looked at of each that runs all it may
-- Returns  how many came back
-- include: ready

local pool, most, most_slots = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
if not generation or now < quarantine_until then
  return 0
end

-- A slot without a running record is free once nobody can hold its lease: a worker has it for so long, whatever was
-- deleted.
local function free_slots(tenant)
  local run = base .. 'run:' .. tenant
  local ids = redis.call('SRANDMEMBER', run, most_slots)
  fetch_all_of(ids)
  for _, id in ipairs(ids) do
    local x = load(id)
    if not x or x.state ~= 'r' then
      local until_us = redis.call('ZSCORE', base .. 'lease', id)
      if not until_us or tonumber(until_us) <= now then
        redis.call('SREM', run, id)
      end
    end
  end
end

local back = 0
for _, tenant in ipairs(redis.call('ZRANDMEMBER', base .. 'capped:' .. pool, most)) do
  local _, room, unpaused = limits(tenant)
  if unpaused < 1 then
    free_slots(tenant)
    _, room = limits(tenant)
  end
  if room > 0 then
    redis.call('SADD', base .. 'held:' .. tenant, pool)
    uncap(tenant)
    back = back + 1
  end
end
write_all()
return back
