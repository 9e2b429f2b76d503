-- Remove some keys of a closed lane. What holds copies, leases and locks goes; outcomes, voids and limits are not
-- passed here.
-- KEYS[1]  meta hash of the lane
-- ARGV     lease (µs); then names of keys of this lane
-- Returns  1, or 0 where the lane has been opened meanwhile: then nothing is touched
-- include: copies

if generation then
  return 0
end

-- Rule 4: plain tasks stay. Whatever else is known of one goes, so it waits among the delayed ones until the lane is
-- open; one that a worker had, until that worker would have lost its lease.
local function lay_by(id, x)
  local due = x.state == 'r' and now + ARGV[1] or now
  x.state, x.entry, x.front, x.parked, x.parked_at = 'd', nil, nil, nil, nil
  redis.call('ZADD', base .. 'delayed', due, id)
  save(id, x)
end

for i = 2, #ARGV do
  local key = ARGV[i]
  local id = string.sub(key, 1, #X) == X and string.sub(key, #X + 1)
  local x = id and load(id)
  if x and x.plain and (x.state == 'q' or x.state == 'r') then
    lay_by(id, x)
  elseif not (x and (x.plain or x.state == 's' or x.final)) then
    -- Of the other markers a settled one stays, and a final one: its outcome is true in every generation and may not be recorded yet.
    redis.call('UNLINK', key)
  end
end
write_cells()
return 1
