-- Cancel one execution: its copy goes with the outcome "cancelled", and its locks with it; one that a worker holds is
-- marked, so that it does not come back from there.
-- KEYS[1]  meta hash of the lane
-- ARGV     execution id, job, tenant
-- Returns  { ended, held (a worker has it, or nobody can know: no generation, or quarantine) or done (its outcome is
--          on the way), worker, token, 1 where its body has begun else 0 }
-- include: endings

local id, job, tenant = ARGV[1], ARGV[2], ARGV[3]
if not generation or now < quarantine_until then
  return {'held', '', '', 0}
end
local x = load(id)
if x and x.state == 'r' then
  if not x.cancelled then
    x.cancelled = true
    save(id, x)
    write_cells()
  end
  return {'held', x.worker, x.token, x.begun == x.token and 1 or 0}
elseif x and (x.state == 's' or x.state == 'x') then
  return {'done', '', '', 0}
end
cancel(id, x or {state = 'v', ver = '0', job = job, tenant = tenant})
write_all()
return {'ended', '', '', 0}
