-- Included by every script: where the lane is, which generation it has, what time it is.
--
-- KEYS[1] is the lane's meta hash. Every other key is built from its name, so all share its hash tag and its slot.
--         Instants are microseconds since the epoch. They are passed to redis.call as numbers (written with 17 digits
--         there) and never joined with "..", which keeps 14 digits only.
local base = string.sub(KEYS[1], 1, -5)
local meta = redis.call('HMGET', KEYS[1], 'generation', 'quarantine_until', 'counter', 'unknown_before',
  'clock_offset_us', 'delayed')
local generation = meta[1]
local quarantine_until = tonumber(meta[2] or 0)
local unknown_before = tonumber(meta[4] or 0)         -- what was due before may have run unseen (rule 12)
local clock = redis.call('TIME')
-- clock_offset_us is a hook for tests: it moves the lane's clock without waiting. Nothing in the product writes it.
local now = clock[1] * 1000000 + clock[2] + (meta[5] or 0)
