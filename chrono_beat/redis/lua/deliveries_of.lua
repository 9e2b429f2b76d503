-- Say which of some executions a worker holds.
-- KEYS[1]  meta hash of the lane
-- ARGV     version (only what is older counts; '' for any); then execution ids, or "tenant:<slug>" for all of a tenant's
-- Returns  false where nobody can know (no generation, or quarantine); else per delivery: execution id, token, worker,
--          1 where its body has begun else 0
-- include: copies

if not generation or now < quarantine_until then
  return false
end
local ids, reply = {}, {}
for i = 2, #ARGV do
  local tenant = string.match(ARGV[i], '^tenant:(.*)$')
  for _, id in ipairs(tenant and redis.call('SMEMBERS', base .. 'run:' .. tenant) or {ARGV[i]}) do
    ids[#ids + 1] = id
  end
end
for _, id in ipairs(ids) do
  local x = load(id)
  if x and x.state == 'r' and (ARGV[1] == '' or tonumber(x.ver) < tonumber(ARGV[1])) then
    local n = #reply
    reply[n + 1], reply[n + 2], reply[n + 3], reply[n + 4] = id, x.token, x.worker, x.begun == x.token and 1 or 0
  end
end
return reply
