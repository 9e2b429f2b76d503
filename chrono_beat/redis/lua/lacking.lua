-- Say which executions have no copy, grant, marker or outcome in the lane, and mend what points to the others.
-- KEYS[1]  meta hash of the lane
-- ARGV     generation; then execution ids
-- Returns  false where the lane cannot be read now (rules 4 and 5), else the ids of those that must be published again
-- include: mending

if not generation or generation ~= ARGV[1] or now < quarantine_until then
  return false
end

local keys, lost = {}, {}
for i = 2, #ARGV do
  keys[i - 1] = X .. ARGV[i]
end
fetch(keys)
for i = 2, #ARGV do
  local x = load(ARGV[i])
  if not x or not is_there(ARGV[i], x, x.ver) then
    lost[#lost + 1] = ARGV[i]
  end
end
write_all()
return lost
