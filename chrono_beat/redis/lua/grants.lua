-- Included: what a copy must be to be handed out, and what it gets.
-- include: endings

-- Say whether the copy may run; one that may not is ended.
local function may_run(id, x, payload)
  if not payload or voided(x) then
    drop_voided(id, x)                                -- rule 9; the audit publishes again what lost its entry
    return false
  elseif x.retry then
    finish(id, x, 'retry')                            -- its last body has said so since it was requeued
    return false
  elseif expired(x) then
    expire(id, x)
    return false
  end
  return true
end

-- Hand it out under a token that is greater than any before it (invariant 6), also over a lost Redis.
local function sign(id, x, worker, counter)
  x.state, x.worker, x.given, x.front = 'r', worker, (x.given or 0) + 1, nil
  x.parked, x.parked_at = nil, nil
  x.token = generation .. '.' .. counter
  save(id, x)
end
