-- Give back what the worker holds by the lane's account but not by its own: the reply of a draw was lost.
-- KEYS[1]  meta hash of the lane
-- ARGV     worker; then the execution ids that it knows
-- Returns  how many were given back
-- include: endings

if not generation then
  return 0
end

local known = {}
for i = 2, #ARGV do
  known[ARGV[i]] = true
end

local returned = 0
local owned = redis.call('SMEMBERS', base .. 'own:' .. ARGV[1])
table.sort(owned)                                     -- a set has no order, and the front list keeps the one it is given
for _, id in ipairs(owned) do
  if not known[id] then
    local x = load(id)
    if x and x.state == 'r' and x.worker == ARGV[1] then
      give_back(id, x)
      returned = returned + 1
    else
      redis.call('SREM', base .. 'own:' .. ARGV[1], id)
    end
  end
end
write_all()
return returned
