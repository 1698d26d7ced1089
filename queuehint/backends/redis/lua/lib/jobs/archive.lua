--[[ archive: jobs that have ended: redriven, kept or dropped; mirrors core.jobs.archive. ]]
local ID_KEPT_MS = 600000 -- @const
-- restarted: jobs that have their deduplication key again and are in no index yet, by key.
local archive = {restarted = {}}

lazily(archive, function()
-- Discard a dead job: FAILED -> CANCELED; return the gates left.
function archive.discard(job)
  local left = job[WALKS] and gates.vacate(job) or 0
  transitions.become(job, CANCELED)
  event_log.note(job, 'canceled', FAILED, 'discarded')
  job[CAUSE] = 'discarded'
  timers.set(job, PRUNE, NOW + transitions.kept_ms(job, CANCELED))
  return left
end

-- Bring a dead job back: FAILED -> QUEUED, to the place it held or to a new one.
function archive.redrive(job)
  transitions.become(job, QUEUED)
  timers.drop(job)
  S[NUMBERS] = S[NUMBERS] + 1
  job[SINCE] = S[NUMBERS]
  archive.restart(job)
  event_log.note(job, 'redriven', FAILED)
  if job[WALKS] then
    job[QUEUED_AT] = NOW
    ready_queue.add(job)
  else
    transitions.place(job)
  end
end

-- Bring back a job that is over, whatever its end: -> DEFERRED or QUEUED; return the gates visited or left. One that is
-- dead keeps the place it holds, unless it waits.
function archive.revive(job, needs, blocked)
  local old = job[STATE]
  -- Of a job that has finished at its first attempt none is noted yet.
  if old == FINISHED and job[WORKER] then
    transitions.note_attempt(job, 'finished', job[ENDED])
    job[WORKER] = false
  end
  job[CANCELED_BY] = false
  transitions.become(job, #blocked > 0 and DEFERRED or QUEUED)
  timers.drop(job)
  S[NUMBERS] = S[NUMBERS] + 1
  job[SINCE] = S[NUMBERS]
  archive.restart(job)
  event_log.note(job, 'redriven', old)
  transitions.bind(job, needs, blocked)
  local within_ms = form.policy(job)[START_WITHIN]
  if within_ms and not job[FIRST] then timers.set_expiry(job, NOW + within_ms) end
  if not job[WALKS] then return #blocked > 0 and 0 or transitions.place(job) end
  if #blocked > 0 then return gates.vacate(job) end
  job[QUEUED_AT] = NOW
  ready_queue.add(job)
  return 0
end

-- Restart a job that has ended: clear its attempts and its end.
function archive.restart(job)
  edges.end_resolving(job)
  job[ATTEMPTS], job[LOSSES] = 0, 0
  job[CAUSE], job[CANCEL], job[ENDED], job[RESULT] = false, false, false, false
  job[PARENT], job[CHILD_FAILED], job[TO_BEGIN] = false, false, false
  -- No index knows yet that it has its key again.
  local key = job[KEY]
  if key then
    job[EXPIRY_MS] = false
    archive.restarted[key] = archive.restarted[key] or {}
    table.insert(archive.restarted[key], job)
  end
end

-- Drop a record but its id; return the gates left.
function archive.forget(job, digest_from)
  local left = gates.vacate(job)
  if not job[GONE] then event_log.note(job, 'pruned', job[STATE]) end
  job[GONE], job[RESULT], job[ERRORS], job[LOGS], job[REPORTED], job[CANCELED_BY] = true, false, 0, 0, false, false
  job[HISTORY], job[WORKER], job[STEPS], job[STEP_BYTES] = false, false, 0, 0
  if job[NEEDS] ~= HELD then job[NEEDS], job[PORTIONS], job[TOLD] = false, false, false end
  jobs.forgotten[job.id] = digest_from
  timers.set(job, PRUNE, math.max(job[ENDED] + ID_KEPT_MS, job[EXPIRY_MS] or 0, NOW))
  return left
end

-- Drop all that is known of a job that is over.
function archive.prune(job)
  if not job[GONE] then event_log.note(job, 'pruned', job[STATE]) end
  job.pruned = true
  jobs.all[job.id] = false
  jobs.dirty[job.id] = job
  S[PRUNED_IN_ALL] = S[PRUNED_IN_ALL] + 1
end
end)
