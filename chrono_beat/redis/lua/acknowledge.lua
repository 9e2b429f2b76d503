-- Remove recorded outcomes; a tombstone that stands for one of them goes a while later (rule 2).
-- KEYS[1]  meta hash of the lane
-- ARGV     how long tombstones stay (ms); then per outcome: stream entry, execution id
-- Returns  how many entries were removed
-- include: copies

-- The stream is left there when it is empty: it remembers its last entry id, so that no id comes twice and a repeated
-- acknowledgement cannot remove a newer outcome.
local entries, keys = {}, {}
for i = 2, #ARGV, 2 do
  entries[#entries + 1], keys[#keys + 1] = ARGV[i], X .. ARGV[i + 1]
end
if #entries == 0 then
  return 0
end
fetch(keys)
for i, entry in ipairs(entries) do
  local x = load(ARGV[2 * i + 1])
  if x and x.out == entry then
    redis.call('PEXPIRE', keys[i], ARGV[1])
  end
end
return redis.call('XDEL', base .. 'out', unpack(entries))
