-- Keep what a body's self.retry() asked for until its delivery is settled.
-- KEYS[1]  meta hash of the lane
-- ARGV     execution id, token, retry (JSON)
-- Returns  1 where it was kept, 0 where the hold is stale
-- include: copies

local x = generation and load(ARGV[1])
-- Rule 14: a copy whose lease has run out, and that was requeued and not granted again, is still this delivery's.
if x and (x.state == 'r' or x.state == 'q' or x.state == 'd') and x.token == ARGV[2] and x.lost ~= ARGV[2] then
  x.retry = ARGV[3]
  save(ARGV[1], x)
  write_cells()
  return 1
end
return 0
