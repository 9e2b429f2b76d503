-- The audit's way to end a row of an old plan (rules 8 and 9): void, drop the copy that no worker holds, append
-- "voided".
-- KEYS[1]  meta hash of the lane
-- ARGV     execution id, job, version (every copy below it is void), tenant, how long to remember the void (ms)
-- Returns  ended (it never ran and never will); lost (ended, too, but it may have run: it was granted, or a lost memory
--          may have known of it); held (a worker has it, or nobody can know: no generation, or quarantine); done (its
--          outcome is on the way, or it has been published anew). The outcome carries the version given here: it means
--          every row below it.
-- include: endings

local id, job, version, tenant = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
if not generation or now < quarantine_until then
  return 'held'
end
local void = get(VOID .. job)
if not void or tonumber(void) <= tonumber(version) then
  put(VOID .. job, version)
  expire_after(VOID .. job, ARGV[5])
  write_cells()                                       -- it is in force whatever the answer is
end

local x = load(id)
if x and x.state == 'r' then
  return 'held'
elseif x and (x.state == 's' or x.state == 'x' or tonumber(x.ver) >= tonumber(version)) then
  return 'done'
end
local may_have_run = x and x.token or not x and unknown_before > 0
x = x or {state = 'v', ver = '0', job = job, tenant = tenant}
local ver = x.ver
x.ver = version
-- What began on a delivery that was lost is not called cancelled.
local outcome = append(x.begun and 'lost' or 'voided', id, x, x.begun and '{"voided": true}')
x.ver = ver
withdraw(id, x)
tombstone(id, x, 'x', outcome)
unlock(id, x)                                         -- rule 9
write_all()
return may_have_run and 'lost' or 'ended'
