-- Return deliveries that never began to the front of their tenant.
-- KEYS[1]  meta hash of the lane
-- ARGV     per delivery: execution id, token
-- Returns  how many were held under that token
-- include: endings

local returned = 0
for i = 1, generation and #ARGV or 0, 2 do
  local x = load(ARGV[i])
  if x and x.state == 'r' and x.token == ARGV[i + 1] then
    give_back(ARGV[i], x)
    returned = returned + 1
  end
end
write_all()
return returned
