-- Note that the pool has accepted deliveries: append "started" for each, once.
-- KEYS[1]  meta hash of the lane
-- ARGV     per delivery: execution id, token
-- Returns  how many were noted
-- include: copies

local noted = 0
for i = 1, generation and #ARGV or 0, 2 do
  local id, token = ARGV[i], ARGV[i + 1]
  local x = load(id)
  if x and x.state == 'r' and x.token == token and x.begun ~= token then
    local retry = x.retry
    x.begun, x.retry = token, nil
    if not x.plain then
      append('started', id, x)
    end
    x.retry = retry
    save(id, x)
    noted = noted + 1
  end
end
write_cells()
return noted
