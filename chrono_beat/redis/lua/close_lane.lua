-- Begin to open a lane under a new generation: until open_lane every other script refuses.
-- KEYS[1]  meta hash of the lane
-- ARGV     the new generation
-- Returns  1, or 0 where the lane already has this generation or a later one
-- include: lane

if generation and tonumber(generation) >= tonumber(ARGV[1]) then
  return 0
end
redis.call('HDEL', KEYS[1], 'generation')
return 1
