-- Remove recorded outcomes; a tombstone that stands for one of them goes a while later (rule 2).
-- KEYS[1]  meta hash of the lane
-- ARGV     how long tombstones stay (ms); then per outcome: stream entry, execution id
-- Returns  how many entries were removed
-- include: lane

-- The stream is left there when it is empty: it remembers its last entry id, so that no id comes twice and a repeated
-- acknowledgement cannot remove a newer outcome.
local removed = 0
for i = 2, #ARGV, 2 do
  removed = removed + redis.call('XDEL', base .. 'out', ARGV[i])
  local key = base .. 'x:' .. ARGV[i + 1]
  if redis.call('HGET', key, 'out') == ARGV[i] and redis.call('PTTL', key) < 0 then
    redis.call('PEXPIRE', key, ARGV[1])
  end
end
return removed
