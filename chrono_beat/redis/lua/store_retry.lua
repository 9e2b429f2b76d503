-- Keep what a body's self.retry() asked for until its delivery is settled.
-- KEYS[1]  meta hash of the lane
-- ARGV     execution id, token, retry (JSON)
-- Returns  1 where it was kept, 0 where the hold is stale
-- include: copies

local x = generation and load(ARGV[1])
if x and x.state == 'r' and x.token == ARGV[2] then
  x.retry = ARGV[3]
  save(ARGV[1], x)
  write_cells()
  return 1
end
return 0
