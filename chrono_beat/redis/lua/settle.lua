-- End deliveries, each once.
-- KEYS[1]  meta hash of the lane
-- ARGV     reap cap; then per settlement: execution id, token, result, detail (JSON)
-- Returns  false where the lane has no generation; else a word each: settled, done (a replay), refused (not the last
--          grant)
-- include: endings

if not generation then
  return false
end

local cap = tonumber(ARGV[1])

local function fetch_all()
  local keys, locks = {}, {}
  for i = 2, #ARGV, 4 do
    keys[#keys + 1] = X .. ARGV[i]
  end
  fetch(keys)
  for i = 2, #ARGV, 4 do
    local x = load(ARGV[i])
    for _, lock in ipairs(x and locks_of(x) or {}) do
      locks[#locks + 1] = lock
    end
  end
  fetch(locks)
end

local function settle(id, token, result, detail)
  local x = load(id)
  if not x then
    if string.sub(id, 1, #PLAIN) == PLAIN then
      return 'done'                                   -- nobody but its worker knew of it any more
    elseif now >= quarantine_until or token == '' or result == 'lost' then
      return 'refused'
    end
    -- Rule 5: the memory of this grant was lost with the last generation; its end is news all the same.
    x = {state = 'v', ver = 0, job = string.match(id, '^[^:]*'), tenant = '', token = token}
  end
  if x.lost == token then
    return result == 'lost' and 'done' or 'refused'
  elseif x.resent == token then
    return 'done'                                     -- a replay: its retry has taken its place
  elseif x.token ~= token then
    return 'refused'                                  -- invariant 6
  elseif x.state == 's' and outcome_is_known(id, x) then
    return 'done'                                     -- rule 2; an outcome that was deleted is appended anew (rule 6)
  end
  if result == 'lost' and not x.retry then
    if x.state ~= 'r' then
      return 'done'                                   -- requeued already, or decided
    end
    x.lost = token
    reap(id, x, cap)
    return 'settled'
  end
  -- Rule 14: this is the last grant. Its lease may have run out, its copy may have been requeued, voided or expired
  -- since.
  if result == 'lost' then
    result = 'retry'                                  -- the body had ended by asking for a retry
  elseif result ~= 'retry' then
    x.retry = nil
  end
  finish(id, x, result, detail)
  return 'settled'
end

fetch_all()
local replies = {}
for i = 2, #ARGV, 4 do
  replies[#replies + 1] = settle(ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3])
end
write_all()
return replies
