-- Included: what lies aside, since no worker that drew it knew its task: parked is a sorted set, id -> since when (µs).
-- The record stays that of a queued copy, whose entry no draw reads; whoever ends or replaces it need not know.
-- include: grants

-- Return the record of a copy that lies aside. What does not any more leaves the set.
local function load_parked(id)
  local x = load(id)
  if x and x.state == 'q' and x.parked then
    return x
  end
  redis.call('ZREM', base .. 'parked', id)
end

local function tell(reply, id, x)
  for _, value in ipairs({id, x.job, x.tenant, x.pool, x.parked, x.parked_at}) do
    reply[#reply + 1] = value
  end
end
