--[[ course: what becomes of a job that does not simply finish, and of one whose timer has come up; mirrors core.engine. ]]
local ID_KEPT_MS = 600000 -- @const
local course = {}

lazily(course, function()

-- End a job FAILED and do with its place what it asked for; return the gates left.
function course.die(job, cause)
  local on_dead = form.policy(job)[ON_DEAD]
  local left = ledger.finish(job, FAILED, cause, on_dead ~= 'continue')
  if on_dead == 'cancel_behind' and job[WALKS] then
    S[NUMBERS] = S[NUMBERS] + 1
    local gate_keys = {}
    for _, claim in ipairs(form.claims(job[CLAIMS])) do gate_keys[#gate_keys + 1] = claim.keys[#claim.keys] end
    work.push(sweeps.cancel(gate_keys, S[NUMBERS], 'behind the dead job ' .. job.id, job))
  end
  return left
end

-- Count a loss; the job is ready again at its old place, or dead.
function course.lose(job, kind, message, traceback)
  ledger.record_error(job, kind, message, traceback)
  job[ATTEMPTS], job[LOSSES] = job[ATTEMPTS] - 1, job[LOSSES] + 1
  S[LOST_IN_ALL] = S[LOST_IN_ALL] + 1
  if job[LOSSES] >= form.policy(job)[MAX_LOSSES] then return course.die(job, 'worker_lost') end
  ledger.put_back(job, false)
  return 0
end

-- Let a job wait for its next attempt, on its place or off it.
function course.back_off(job, delay_ms)
  local policy = form.policy(job)
  if policy[ON_RETRY] == 'yield' then
    ledger.postpone(job, NOW + delay_ms)
  elseif delay_ms <= 0 then
    ledger.put_back(job, false)
  else
    ledger.put_back(job, NOW + delay_ms)
    if delay_ms > policy[MAX_HOLD] then timers.set(job, DUE, NOW + policy[MAX_HOLD]) end
  end
end

-- Take up a job whose time has come, or whose back-off has held its place long enough.
function course.promote(job)
  if job[STATE] == QUEUED then
    if job[DUE_AT] and job[DUE_AT] > NOW then return ledger.postpone(job, job[DUE_AT]) end
    ledger.offer(job)
    return 0
  end
  if job[BLOCKED] > 0 then
    ledger.become(job, DEFERRED)
    job[DUE_AT] = false
    return 0
  end
  return ledger.queue(job)
end

-- Take a job from a worker that did not renew its lease.
function course.reap(job)
  epoch.know()
  if S[REAP_FROM] > NOW then
    timers.set(job, LEASE, S[REAP_FROM])
    return 0
  end
  if job[PRESENCE] then return ledger.finish(job, CANCELED, 'waiter_lost', false) end
  if job[CANCEL] then
    S[LOST_IN_ALL] = S[LOST_IN_ALL] + 1
    return ledger.finish(job, CANCELED, job[CANCEL], false)
  end
  return course.lose(job, 'worker_lost', 'worker ' .. job[WORKER] .. ' did not renew its lease', false)
end

-- Drop all that is known of a job that is over.
function course.forget(job)
  job.pruned = true
  jobs.all[job.id] = false
  jobs.dirty[job.id] = job
  S[PRUNED_IN_ALL] = S[PRUNED_IN_ALL] + 1
end

-- Drop a record that was kept long enough, free a place it held; its id is kept for ten minutes at least.
function course.prune(job)
  local left = gates.vacate(job)
  if job[ENDED] + ID_KEPT_MS > NOW then
    job[GONE], job[RESULT], job[ERRORS], job[LOGS], job[REPORTED] = true, false, 0, 0, false
    timers.set(job, PRUNE, job[ENDED] + ID_KEPT_MS)
  else
    course.forget(job)
  end
  return left
end

function course.come_up(kind, job)
  if kind == EXPIRY then return ledger.finish(job, CANCELED, 'expired', false) end
  if kind == LEASE then return course.reap(job) end
  if kind == PRUNE then return course.prune(job) end
  return course.promote(job)
end
end)
