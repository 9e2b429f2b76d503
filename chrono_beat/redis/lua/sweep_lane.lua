-- Remove some keys of a closed lane. What holds copies, leases and locks goes; outcomes, voids and limits are not
-- passed here.
-- KEYS[1]  meta hash of the lane
-- ARGV     names of keys of this lane
-- Returns  1, or 0 where the lane has been opened meanwhile: then nothing is touched
-- include: copies

if generation then
  return 0
end
for _, key in ipairs(ARGV) do
  local x = string.sub(key, 1, #X) == X and load(string.sub(key, #X + 1))
  -- Of the markers a settled one stays: its outcome is true in every generation and may not be recorded yet.
  if not (x and x.state == 's') then
    redis.call('UNLINK', key)
  end
end
return 1
