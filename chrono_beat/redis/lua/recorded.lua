-- Say which settled outcomes a worker need not keep any longer (rule 6).
-- KEYS[1]  meta hash of the lane
-- ARGV     the generation under which they were settled; then per outcome: execution id, token
-- Returns  { generation of the lane, '' for none, or for one that another server gave; ids of those that are recorded,
--          or that nobody needs any more; ids of those that are not recorded and whose outcome is gone }; both lists
--          are empty where the generation is another one
-- include: copies

local done, gone, keys = {}, {}, {}
-- A server that took over may have forgotten the end of what it remembers of (rule 4): until the lane is opened anew it
-- has no say.
local opened = redis.call('HGET', KEYS[1], 'replication_id')
if string.match(redis.call('INFO', 'replication'), 'master_replid:(%w+)') ~= opened then
  return {'', done, gone}
end
if not generation or generation ~= ARGV[1] then
  return {generation or '', done, gone}
end

for i = 2, #ARGV, 2 do
  keys[#keys + 1] = X .. ARGV[i]
end
fetch(keys)
for i = 2, #ARGV, 2 do
  local id = ARGV[i]
  local x = load(id)
  if not x or x.state ~= 's' or x.token ~= ARGV[i + 1] or redis.call('PTTL', X .. id) >= 0 then
    done[#done + 1] = id
  elseif not outcome_is_known(id, x) then
    gone[#gone + 1] = id
  end
end
return {generation, done, gone}
