--[[ staging: the jobs of a submission in parts, before and after its commit, and timeouts of flows; mirrors core.jobs.staging.
  Of a flow with a timeout there is a deadline: a head like the start of a submission, with an expiry, on which nothing depends. ]]
local staging = {}

lazily(staging, function()
-- A new start of a submission, or deadline: hidden, until its expiry. Its spec is START_SPEC.
function staging.open_start(id, flow)
  S[NUMBERS] = S[NUMBERS] + 1
  local start = heads.new(id, S[NUMBERS], heads.facts(heads.facts_text(3, 'default', '', START_TASK, '', '')), '')
  jobs.set_spec(start, START_SPEC)
  if flow ~= '' then start[FLOW] = flow end
  start.is_plain = false
  start[STATE] = DEFERRED
  -- An id may be taken again in the very step in which it is pruned or dropped.
  if jobs.dirty[id] then jobs.buried[#jobs.buried + 1] = {id, jobs.dirty[id]} end
  jobs.all[id], jobs.dirty[id] = start, start
  return start
end

-- Set when a new flow times out, false for never, in place of the timeout of an earlier flow of its id.
function staging.set_timeout(flow, timeout_ms)
  local id = DEADLINE_MARK .. flow
  local deadline = jobs.of(id)
  if deadline and deadline.pruned then deadline = false end
  if timeout_ms then
    timers.set_expiry(deadline or staging.open_start(id, flow), NOW + timeout_ms)
  elseif deadline then
    staging.remove(deadline)
  end
end

-- Begin to cancel the unfinished jobs of a flow. It takes a number itself: jobs enqueued or redriven later are not covered.
function staging.cancel_flow(flow, cause)
  S[NUMBERS] = S[NUMBERS] + 1
  work.push({'f', flow, S[NUMBERS], S[NUMBERS], cause})
end

-- Begin to drop a submission that was not committed in time, or to cancel a flow that has timed out.
function staging.expire(start)
  if string.sub(start.id, 1, #DEADLINE_MARK) == DEADLINE_MARK then
    staging.remove(start)
    return staging.cancel_flow(string.sub(start.id, #DEADLINE_MARK + 1), 'flow_timeout')
  end
  staging.withdraw(start)
end

-- Begin to drop a submission that is not committed.
function staging.withdraw(start)
  staging.close_start(start, CANCELED)
  work.push({'x', start.id, 0, S[NUMBERS]})
end

-- Add a portion of dependencies, as text, to a hidden job of a submission in parts.
function staging.depend(job, needs)
  if not job[NEEDS] then job[NEEDS], edges.told[job.id] = KNOWN, '' end
  job[TOLD] = edges.count_needs(job) + edges.count_in(needs)
  job[PORTIONS] = (job[PORTIONS] or 0) + 1
  edges.told[edges.field(job.id, job[PORTIONS])] = needs
  local start = jobs.of(START_MARK .. job[STAGED])
  start[PORTIONS] = (start[PORTIONS] or 0) + 1
  jobs.dirty[job.id], jobs.dirty[start.id] = job, start
end

-- Whether a submission has just as many jobs and portions of dependencies.
function staging.is_whole(start, count, portions)
  return edges.count(start.id) == count and (start[PORTIONS] or 0) == portions
end

-- Begin to drop a submission whose hidden job is taken by another enqueue: it cannot take effect whole any more.
function staging.take(job)
  local start = jobs.of(START_MARK .. job[STAGED])
  if start and not OVER[start[STATE]] then staging.withdraw(start) end
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
