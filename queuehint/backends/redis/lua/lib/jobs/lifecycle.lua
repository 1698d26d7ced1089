--[[ lifecycle: ends, retries and losses of jobs, and timers that fire; mirrors core.jobs.lifecycle. ]]
local PINNED_LOOK_MIN_MS, PINNED_LOOK_MAX_MS = 60000, 3600000 -- @const
local PREFETCHED_FROM = 8 -- @const
local CANCEL_UNITS, REVIVE_UNITS, REAP_UNITS, PRUNE_UNITS, DROP_UNITS = 4, 4, 2, 5, 2 -- @const
local EDGE_UNITS, EDGES_AT_ONCE, NEXT_SLICE = 3, 50, 1000000 -- @const
local UNSEARCHABLE = 'whether a child waits for this job cannot be decided within 1000 jobs'
local lifecycle = {}

lazily(lifecycle, function()
-- End a job and begin to resolve the edges of those that depend on it; return the gates left.
function lifecycle.finish(job, state, cause, keep_place)
  local left = transitions.finish(job, state, cause, keep_place)
  -- A plain job has neither dependencies nor dependents.
  if job.is_plain then return left end
  lifecycle.resolve_dependents(job)
  -- A dead job may be redriven: what it needs is kept for it.
  if job[BLOCKED] > 0 or (job[NEEDS] == HELD and state ~= FAILED) then work.push({'p', job.id}) end
  return left
end

-- Cancel a wait for a signal if no job waits for it; return the units used.
function lifecycle.end_unawaited(wait)
  if OVER[wait[STATE]] or edges.has_dependents(wait) then return 0 end
  return CANCEL_UNITS + lifecycle.finish(wait, CANCELED, 'nobody waits for it', false)
end

-- Begin to resolve the edges to a job that is over. A sweep over dependents: kind, whose, the number it has come to, the
-- number at which it began, which end of the job it is about, and when it began.
function lifecycle.resolve_dependents(job)
  edges.end_resolving(job)
  if not edges.has_dependents(job) then return end
  work.push({'r', job.id, 0, S[NUMBERS], transitions.end_of(job), NOW})
  job[AWAITED] = RESOLVING
  jobs.dirty[job.id] = job
end

-- Cancel an unfinished job at once, or ask the one that runs to stop; return the gates left.
function lifecycle.cancel(job, cause)
  if job[STATE] ~= STARTED then return lifecycle.finish(job, CANCELED, cause, false) end
  if not job[CANCEL] then transitions.ask_to_stop(job, cause) end
  return 0
end

function lifecycle.record_error(job, kind, message, traceback)
  event_log.error = kind and {kind, message}
  if not kind then return end
  local added = transitions.errors_added[job.id]
  if not added then
    added = {}
    transitions.errors_added[job.id] = added
  end
  added[#added + 1] = cmsgpack.pack({job[ATTEMPTS], NOW, kind, message, traceback})
  job[ERRORS] = math.min(job[ERRORS] + 1, 20)
  jobs.dirty[job.id] = job
end

-- End a job FAILED and do with its place what it asked for; return the gates left.
function lifecycle.die(job, cause)
  local on_dead = form.policy(job)[ON_DEAD]
  local left = lifecycle.finish(job, FAILED, cause, on_dead ~= 'continue')
  if on_dead == 'cancel_behind' and job[WALKS] then
    S[NUMBERS] = S[NUMBERS] + 1
    local gate_keys = {}
    for _, claim in ipairs(form.claims(job[CLAIMS])) do gate_keys[#gate_keys + 1] = claim.keys[#claim.keys] end
    work.push(work.cancel_sweep(gate_keys, S[NUMBERS], 'behind the dead job ' .. job.id, job))
  end
  return left
end

-- Discard a dead job, and resolve the edges of those that waited for a redrive; return the gates left.
function lifecycle.discard(job)
  local left = archive.discard(job)
  lifecycle.resolve_dependents(job)
  if job[NEEDS] == HELD then work.push({'p', job.id}) end
  return left
end

-- The last job of a path of a job, which thus takes no place there any more; false if it may, or is that very job.
function lifecycle.last_above(job) return S[CLOSED_PATHS] > 0 and closings.last_above(job) end

-- Sort out which of the jobs named from an argument on are in the dead-letter queue; from here on nothing prunes those.
function lifecycle.sort_out(target, first)
  local dead, named, verdicts = {}, {}, {}
  for at = first, #ARGV do
    local job = jobs.find(ARGV[at])
    if not job then
      verdicts[#verdicts + 1] = 'U-'
    elseif job[STATE] ~= FAILED or (target == QUEUED and (job[PRESENCE] or lifecycle.last_above(job))) then
      verdicts[#verdicts + 1] = 'R' .. job[STATE]
    else
      if not named[job.id] then dead[#dead + 1] = job end
      named[job.id] = true
      timers.drop(job)
      verdicts[#verdicts + 1] = 'D' .. target
    end
  end
  return dead, table.concat(verdicts)
end

-- Cancel a job that would take a place where another was the last; return the gates left.
local function shut_out(job, last) return lifecycle.finish(job, CANCELED, closings.cause_of_closing(last), false) end

-- Count an attempt that failed for good.
function lifecycle.fail(job, kind, message)
  lifecycle.record_error(job, kind, message, false)
  return lifecycle.die(job, 'failed')
end

-- Whether a child waits for a job; nil if that takes too long. It is looked for along what the children wait for, and if
-- that is too much, along what waits for the job: one of both is little, as a rule.
local function is_cycle(job, child_ids)
  local found = edges.reaches(child_ids, {[job.id] = true}, {[0] = 0})
  if found == nil and S[COMMITTING] == 0 then
    local ids = {}
    for _, id in ipairs(child_ids) do ids[id] = true end
    found = edges.is_awaited_by(job.id, ids)
  end
  return found
end

-- Let a job that has run be over when its children are; FAILED if it would, or may, wait for ever.
function lifecycle.await_children(job, ids, on_failure)
  local is_again = on_failure == 'a'
  local edge = is_again and AWAITED_AGAIN or on_failure == 'f' and 'dnn-' or AFTER
  local failed, children, child_ids, named = false, {}, {}, {}
  for id in string.gmatch(ids, '[^\n]+') do
    if not named[id] then
      named[id] = true
      -- Of one whose record has expired it is still known how it ended.
      local child = jobs.of(id)
      if not child or jobs.is_hidden(child) then
        return lifecycle.fail(job, 'queuehint.errors.UnknownDependencyError', 'child ' .. id .. ' does not exist')
      end
      if not OVER[child[STATE]] then
        children[#children + 1], child_ids[#child_ids + 1] = {id, edge}, id
      elseif not failed and edges.edge_action(edge, child[STATE]) == TO_NOTE then
        failed = child[STATE] .. id
      end
    end
  end
  local has_cycle = is_cycle(job, child_ids)
  if has_cycle == nil then return lifecycle.fail(job, 'queuehint.errors.DependencyError', UNSEARCHABLE) end
  if has_cycle then return lifecycle.fail(job, 'queuehint.errors.CycleError', 'a child waits for this job') end
  if failed then job[CHILD_FAILED] = failed end
  if is_again then job[ATTEMPTS] = job[ATTEMPTS] - 1 end
  if #children > 0 then return transitions.await_children(job, children, is_again) end
  if is_again then return transitions.put_back(job, false, 'released') end
  return lifecycle.end_parent(job)
end

-- End a job whose children are over; return the gates left.
function lifecycle.end_parent(job)
  local failed = job[CHILD_FAILED]
  if not failed then return lifecycle.finish(job, FINISHED, false, false) end
  local state = string.sub(failed, 1, 1) == FAILED and 'FAILED' or 'CANCELED'
  lifecycle.record_error(job, 'child_failed', 'child ' .. string.sub(failed, 2) .. ' is ' .. state, false)
  return lifecycle.die(job, 'child_failed')
end

local HAS_ENDED = {F = ' has finished', X = ' has failed', C = ' was canceled'}

-- Cancel a job because of another one's end, its state; false if the other's record has expired. Returns the gates left.
function lifecycle.cancel_because_of(job, id, state, gone)
  local left = lifecycle.finish(job, CANCELED, 'dependency ' .. id .. (state and HAS_ENDED[state] or ' has expired'), false)
  if state and not gone then edges.set_canceled_by(job, id) end
  return CANCEL_UNITS + left
end

-- End a job because of another one's end as the action of its edge says: CANCELED or FAILED; return the units used.
function lifecycle.end_because_of(job, id, state, gone, action)
  if action ~= TO_FAIL then return lifecycle.cancel_because_of(job, id, state, gone) end
  lifecycle.record_error(job, 'dependency_failed', 'dependency ' .. id .. HAS_ENDED[state], false)
  local left = lifecycle.die(job, 'dependency_failed')
  -- It has never run: a redrive runs it at once, with what it finds.
  if job[NEEDS] == HELD and job[BLOCKED] == 0 then work.push({'p', job.id}) end
  return CANCEL_UNITS + left
end

-- Have the waits for signals of a job looked at that is over and was never bound to them.
function lifecycle.let_go(job)
  if job[NEEDS] == HELD then return end
  for _, need in ipairs(edges.all_needs(job)) do
    if jobs.is_wait(need[1]) then return work.push({'p', job.id}) end
  end
end

-- End a signal with its data, or a wait with those of its signal; return the gates left.
function lifecycle.give(job)
  local need, data = job[NEEDS] and edges.needs_of(job)[1], nil
  if need then
    data = plan.results[need[1]] or redis.call('HGET', store.results, need[1]) or ''
  else
    local spec = jobs.specs[job.id] or heads.spec(job)
    local _, plain = jobs.identity(spec)
    data = string.sub(plain or spec, string.find(plain or spec, '\n', 1, true) + 1)
  end
  plan.results[job.id], job[RESULT] = data, 's'
  return lifecycle.finish(job, FINISHED, false, false)
end

-- Count how long a job has waited for its last edge to be resolved.
local function count_delay(delay_ms)
  S[RESOLVED], S[RESOLVED_SUM] = S[RESOLVED] + 1, S[RESOLVED_SUM] + delay_ms
  S[RESOLVED_MAX] = math.max(S[RESOLVED_MAX], delay_ms)
end

-- Resolve the edge of a waiting job to a job that has ended: apply the edge's action; return the gates visited or left. The
-- state of a dropped dependency is false. If its record is gone, dependents whose edge says to keep waiting find it expired.
function lifecycle.resolve(job, id, state, gone, since_ms)
  local edge = edges.of(job, id)
  -- One that was redriven before its edges were released waits for nothing.
  if not edge or job[STATE] == QUEUED or job[STATE] == STARTED then return 0 end
  local action = edges.edge_action(edge, state or CANCELED)
  -- A dependent of a record that is gone would wait for ever, also by an edge that the doctor took from its list.
  if gone and (action == TO_WAIT or not state and string.sub(edge, 4) == IS_KEPT) then return lifecycle.cancel_because_of(job, id, false) end
  state = state or CANCELED
  if action == TO_WAIT then return 0 end
  if action == TO_CANCEL or action == TO_FAIL then return lifecycle.end_because_of(job, id, state, gone, action) end
  if action == TO_NOTE and not job[CHILD_FAILED] then job[CHILD_FAILED] = state .. id end
  edges.close(job, id)
  if job[BLOCKED] > 0 then return 0 end
  if job[PARENT] then return lifecycle.end_parent(job) end
  if job[STATE] ~= DEFERRED then return 0 end
  if job[TASK] == SIGNAL_TASK then return lifecycle.give(job) end
  local last = lifecycle.last_above(job)
  if last then return shut_out(job, last) end
  count_delay(NOW - since_ms)
  return transitions.queue(job)
end

-- Evaluate the dependencies of a job: return those it has to wait for, and the first that cancels it, if any, with its
-- state (false if its record has expired). *is_late* returns whether a job was enqueued too late to be the dependency meant
-- and only has its id: the one meant has expired.
function lifecycle.evaluate(needs, coming, is_late)
  local blocked = {}
  if #needs > PREFETCHED_FROM then
    local ids = {}
    for at, need in ipairs(needs) do ids[at] = need[1] end
    jobs.prefetch(ids)
  end
  for _, need in ipairs(needs) do
    local job = jobs.of(need[1])
    local waits = true
    if jobs.is_signal(need[1]) then
      -- One that was given, at any time, is over for good; any other may be given yet.
      waits = not job or job[GONE]
    elseif not job or job[GONE] or jobs.is_hidden(job) or (is_late and is_late(job)) then
      if job or not coming[need[1]] then return {}, need[1], false end
    elseif OVER[job[STATE]] then
      local action = edges.edge_action(need[2], job[STATE])
      if action == TO_CANCEL or action == TO_FAIL then return {}, need[1], job[STATE], action end
      waits = action == TO_WAIT
    end
    if waits then blocked[#blocked + 1] = need end
  end
  return blocked, false, false
end

-- Take up a job of a submission that was committed; return the units used, some for each dependency. Up to EDGES_AT_ONCE of these at
-- a time: it is let go with the last of them, or when one cancels it. The sweep has at [5] the number of that job, at [6] how
-- many of its portions are bound and, times NEXT_SLICE, how many slices of the next one.
function lifecycle.begin(job, sweep)
  local bound = sweep[5] == job[NUMBER] and sweep[6] or 0
  if sweep[5] then sweep[5], sweep[6] = 0, 0 end
  local at = bound % NEXT_SLICE
  local first = (bound - at) / NEXT_SLICE * EDGES_AT_ONCE
  local needs = edges.portion_of(job, at)
  local is_cut = #needs > first + EDGES_AT_ONCE
  if #needs > EDGES_AT_ONCE then needs = {unpack(needs, first + 1, math.min(first + EDGES_AT_ONCE, #needs))} end
  local blocked, canceled_by, state, action = lifecycle.evaluate(needs, {}, function(other) return edges.is_late(job, other) end)
  if not canceled_by and (is_cut or at < (job[PORTIONS] or 0)) then
    transitions.bind(job, needs, blocked)
    sweep[5], sweep[6] = job[NUMBER], is_cut and bound + NEXT_SLICE or at + 1
    return EDGE_UNITS * #needs
  end
  local commit_ms = staging.unstage(job)
  if canceled_by then
    lifecycle.let_go(job)
    return EDGE_UNITS * #needs + lifecycle.end_because_of(job, canceled_by, state, false, action)
  end
  if job[TASK] == SIGNAL_TASK and #blocked == 0 then return EDGE_UNITS * #needs + lifecycle.give(job) end
  local last = lifecycle.last_above(job)
  if last then return EDGE_UNITS * #needs + shut_out(job, last) end
  return EDGE_UNITS * #needs + staging.begin(job, needs, blocked, commit_ms)
end

-- Drop a job of a submission that was never committed; others that wait for it find its record expired.
function lifecycle.drop(job)
  job[GONE], job[STATE] = true, CANCELED
  if edges.has_dependents(job) then work.push({'r', job.id, 0, S[NUMBERS], 'gone', NOW}) end
  staging.remove(job)
  return DROP_UNITS
end

-- The dependencies that a job waits for when it is run again together with others, *ids*; nil if it cannot be. With them
-- come those that are none of *ids*, and the jobs that depend on it and are not over.
function lifecycle.blocked_again(job, ids)
  if not OVER[job[STATE]] or job[PRESENCE] or job[TASK] == SIGNAL_TASK or lifecycle.last_above(job) then return nil end
  -- What is left over of ends and of commits comes first.
  if job[BLOCKED] > 0 or (job[NEEDS] == HELD and job[STATE] ~= FAILED) or S[COMMITTING] > 0 or job[AWAITED] == RESOLVING then
    return nil
  end
  -- Any other job that may run, and cannot wait for it again, counts on its result.
  local waiting_jobs = {}
  if edges.has_dependents(job) then
    waiting_jobs = edges.waiting_for(job.id)
    if not waiting_jobs then return nil end
  end
  local needs = job[NEEDS] and edges.all_needs(job) or {}
  local blocked, outside = {}, {}
  for _, need in ipairs(needs) do
    if ids[need[1]] then blocked[#blocked + 1] = need else outside[#outside + 1] = need end
  end
  local others, canceled_by = lifecycle.evaluate(outside, {}, function(other) return other[ENQUEUED] > job[ENQUEUED] end)
  if canceled_by then return nil end
  for _, need in ipairs(others) do blocked[#blocked + 1] = need end
  return blocked, others, waiting_jobs
end

-- Revive a job that was canceled because of another one, if its dependencies allow it; return the units used.
function lifecycle.revive(job)
  local needs = edges.all_needs(job)
  local blocked, canceled_by, state = lifecycle.evaluate(needs, {}, function(other) return other[ENQUEUED] > job[ENQUEUED] end)
  if canceled_by then
    job[CANCELED_BY] = false
    jobs.dirty[job.id] = job
    if state then edges.set_canceled_by(job, canceled_by) end
    return #needs
  end
  if lifecycle.last_above(job) then return #needs end
  local visited = archive.revive(job, needs, blocked)
  lifecycle.revive_dependents(job)
  return REVIVE_UNITS + #needs + visited
end

function lifecycle.revive_dependents(job)
  if edges.first_canceled_by(job.id, 0) then work.push({'v', job.id, 0}) end
end

-- Count a loss; the job is ready again at its old place, or dead.
function lifecycle.lose(job, kind, message, traceback)
  lifecycle.record_error(job, kind, message, traceback)
  job[ATTEMPTS], job[LOSSES] = job[ATTEMPTS] - 1, job[LOSSES] + 1
  S[LOST_IN_ALL] = S[LOST_IN_ALL] + 1
  if job[LOSSES] >= form.policy(job)[MAX_LOSSES] then return lifecycle.die(job, 'worker_lost') end
  transitions.put_back(job, false, 'lost', kind)
  return 0
end

-- Let a job wait for its next attempt, on its place or off it.
function lifecycle.back_off(job, delay_ms, kind, cause)
  local policy = form.policy(job)
  if policy[ON_RETRY] == 'yield' then
    transitions.postpone(job, NOW + delay_ms, kind, cause)
  elseif delay_ms <= 0 then
    transitions.put_back(job, false, kind, cause)
  else
    transitions.put_back(job, NOW + delay_ms, kind, cause)
    if delay_ms > policy[MAX_HOLD] then timers.set(job, DUE, NOW + policy[MAX_HOLD]) end
  end
end

-- Take up a job whose time has come, or whose back-off has held its place long enough.
function lifecycle.promote(job)
  if job[STATE] == QUEUED then
    if job[DUE_AT] and job[DUE_AT] > NOW then return transitions.postpone(job, job[DUE_AT], 'scheduled') end
    transitions.offer(job)
    return 0
  end
  if job[BLOCKED] > 0 then
    transitions.become(job, DEFERRED)
    event_log.note(job, 'deferred', SCHEDULED)
    job[DUE_AT] = false
    return 0
  end
  local last = lifecycle.last_above(job)
  return last and shut_out(job, last) or transitions.queue(job)
end

-- Take a job from a worker that did not renew its lease.
function lifecycle.reap(job)
  epoch.know()
  if S[REAP_FROM] > NOW then
    timers.set(job, LEASE, S[REAP_FROM])
    return 0
  end
  if job[PRESENCE] then return lifecycle.finish(job, CANCELED, 'waiter_lost', false) end
  -- It announces itself again if it lives.
  transitions.lost_workers[job[WORKER]] = true
  if job[CANCEL] then
    S[LOST_IN_ALL] = S[LOST_IN_ALL] + 1
    return lifecycle.finish(job, CANCELED, job[CANCEL], false)
  end
  if job[TO_BEGIN] then
    -- Its code has not begun, so it is not to blame for the end of its worker.
    job[ATTEMPTS] = job[ATTEMPTS] - 1
    transitions.put_back(job, false, 'released', 'worker_lost')
    return 0
  end
  return lifecycle.lose(job, 'worker_lost', 'worker ' .. job[WORKER] .. ' did not renew its lease', false)
end

-- Drop a record except its id; notify those that wait for a dead job. Return the gates left.
local function forget(job, digest_from)
  local has_dependents, holds = edges.has_dependents(job), job[NEEDS] == HELD
  local is_told = job[STATE] == FAILED and not job[GONE] and (holds or has_dependents)
  local left = archive.forget(job, digest_from)
  if is_told then
    if has_dependents then work.push({'r', job.id, 0, S[NUMBERS], 'gone' .. job[STATE], NOW}) end
    if holds then work.push({'p', job.id}) end
  end
  return left
end

-- Drop a record before its time; false if the job is not over, or a dependent may still read its result.
function lifecycle.delete(job)
  if not OVER[job[STATE]] or (job[STATE] == FINISHED and edges.has_dependents(job)) then return false end
  if jobs.is_signal(job.id) then
    timers.drop(job)
    archive.prune(job)
    return true
  end
  -- Of what follows from its end something may be left over, which comes first: its id goes when its turn comes.
  forget(job, 0)
  return true
end

-- Drop a record that was kept long enough, free a place it held; its id is kept for ten minutes at least, and as long as
-- it keeps its key. A result is kept as long as a job that depends on it may still run. Those that wait for a dead job
-- are canceled.
function lifecycle.prune(job)
  -- One that is plain and over has no dependents, no place and no key.
  if job.is_plain and job[ENDED] + ID_KEPT_MS <= NOW then archive.prune(job); return 0 end
  local has_dependents = edges.has_dependents(job)
  if job[STATE] == FINISHED and not job[GONE] and has_dependents then
    timers.set(job, PRUNE, NOW + math.min(math.max(transitions.kept_ms(job, FINISHED), PINNED_LOOK_MIN_MS), PINNED_LOOK_MAX_MS))
    return 0
  end
  if jobs.is_signal(job.id) then
    -- It may be given anew.
    archive.prune(job)
    return 0
  end
  local is_woven = not job[GONE] and (job[NEEDS] == HELD or has_dependents)
  if job[ENDED] + ID_KEPT_MS > NOW or job[EXPIRY_MS] or is_woven then return forget(job, DIGEST_FROM) end
  local left = gates.vacate(job)
  archive.prune(job)
  return left
end

function lifecycle.fire_timer(kind, job)
  if kind == RESUME then
    pauses.resume(job)
    return 0
  end
  if kind == EXPIRY and jobs.is_start(job.id) then
    staging.expire(job)
    return 0
  end
  if kind == EXPIRY and OVER[job[STATE]] then return 0 end
  if kind == EXPIRY then return lifecycle.finish(job, CANCELED, 'expired', false) end
  -- Both change more than other steps do: a thousand would hold up the server several times as long.
  if kind == LEASE then return REAP_UNITS + lifecycle.reap(job) end
  if kind == PRUNE then return PRUNE_UNITS + lifecycle.prune(job) end
  return lifecycle.promote(job)
end
end)
