-- Count the entries that wait for a draw, of some tenants of a pool.
-- KEYS[1]  meta hash of the lane
-- ARGV     pool; then tenants
-- Returns  a number per tenant, in order
-- include: lane

local pool = ARGV[1]
local counts = {}
for i = 2, #ARGV do
  local count = redis.call('LLEN', base .. 'front:' .. pool .. ':' .. ARGV[i])
  local digits = redis.call('HGET', base .. 'prios:' .. pool, ARGV[i]) or ''
  for prio in string.gmatch(digits, '%d') do
    local stream = base .. 's:' .. pool .. ':' .. ARGV[i] .. ':' .. prio
    local pending = redis.pcall('XPENDING', stream, 'chrono')       -- granted ones stay in the stream until they are settled
    count = count + redis.call('XLEN', stream) - (type(pending[1]) == 'number' and pending[1] or 0)
  end
  counts[#counts + 1] = count
end
return counts
