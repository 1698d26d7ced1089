--[[ staging: the jobs of a submission in parts, before and after its commit; mirrors core.jobs.staging. ]]
local staging = {}

lazily(staging, function()
-- Add a portion of dependencies, as text, to a hidden job of a submission in parts.
function staging.depend(job, needs)
  if not job[NEEDS] then job[NEEDS], edges.told[job.id] = KNOWN, '' end
  job[PORTIONS] = (job[PORTIONS] or 0) + 1
  edges.told[edges.field(job.id, job[PORTIONS])] = needs
  jobs.dirty[job.id] = job
end

-- Make the jobs of a submission in parts visible, all at once; return how many.
function staging.commit(start)
  local staged = edges.count(start.id)
  staging.close_start(start, FINISHED)
  -- The commit takes a number itself: a job enqueued or committed later is no dependency of these.
  S[NUMBERS] = S[NUMBERS] + 1
  start[SINCE] = S[NUMBERS]
  S[COMMITTING] = S[COMMITTING] + 1
  S[COUNT_OF.D], S[HIDDEN] = S[COUNT_OF.D] + staged, S[HIDDEN] - staged
  work.push({'k', start.id, 0, S[NUMBERS]})
  return staged
end

function staging.close_start(start, state)
  start[STATE], start[ENDED], start[EXPIRY_MS] = state, NOW, false
  jobs.dirty[start.id] = start
end

-- Let go a job of a submission that was committed: it counts as enqueued then. Returns when that was.
function staging.unstage(job)
  local start = jobs.of(START_MARK .. job[STAGED])
  edges.close(job, start.id)
  job[STAGED], job[CAME], job[ENQUEUED] = false, start[SINCE], start[ENDED]
  jobs.dirty[job.id] = job
  event_log.note(job, 'enqueued', false)
  return start[ENDED]
end

-- Let a DEFERRED job without edges wait for its time or others, or take its place; return the gates visited.
function staging.begin(job, needs, blocked, commit_ms)
  transitions.bind(job, needs, blocked)
  transitions.set_time(job, job[DELAYED], job[RUN_AT], commit_ms)
  job[DELAYED], job[RUN_AT] = false, false
  if job[DUE_AT] then
    transitions.become(job, SCHEDULED)
    event_log.note(job, 'scheduled', DEFERRED)
    timers.set(job, DUE, job[DUE_AT])
    return 0
  end
  return job[BLOCKED] > 0 and 0 or transitions.queue(job)
end

-- Drop a job of a submission that was never committed, or the start of one, as if it had never been.
function staging.remove(job)
  edges.release(job)
  job.pruned, job[EXPIRY_MS] = true, false
  jobs.dirty[job.id] = job
  -- Whether jobs were hidden is told by the start of their submission.
  if not jobs.is_start(job.id) then jobs.all[job.id] = false end
end
end)
