--[[ transitions: the transitions of a job; mirrors core.jobs.table: state, gates, offers, timers, edges.
  Counts and indexes are not changed here: they follow from the heads, see lib/request/write. ]]
local AWAITED_KEPT_MS, ATTEMPTS_KEPT = 60000, 20 -- @const
local transitions = {undelivered = {}, ended = {}, errors_added = {}, lost_workers = {}}

lazily(transitions, function()
function transitions.become(job, state)
  if not string.find(MOVES[job[STATE]], state, 1, true) then
    corrupt('job ' .. job.id .. ' is ' .. job[STATE] .. ' and cannot become ' .. state)
  end
  job[STATE] = state
  job[VERSION] = job[VERSION] + 1
  jobs.dirty[job.id] = job
end

transitions.kept_ms = kept_ms

-- The cancellations of a worker's jobs that were not delivered to it yet, in the order of the requests.
function transitions.undelivered_of(worker)
  local list = transitions.undelivered[worker]
  if not list then
    local stored = redis.call('HGET', store.untold, worker)
    list = {ids = stored and cmsgpack.unpack(stored) or {}, stored = stored and true}
    transitions.undelivered[worker] = list
  end
  return list
end

function transitions.forget_cancellation(job)
  local list = transitions.undelivered_of(job[WORKER])
  for at, id in ipairs(list.ids) do
    if id == job.id then
      table.remove(list.ids, at)
      list.changed = true
      return
    end
  end
end

function transitions.ask_to_stop(job, cause)
  job[CANCEL] = cause
  job[VERSION] = job[VERSION] + 1
  jobs.dirty[job.id] = job
  local list = transitions.undelivered_of(job[WORKER])
  list.ids[#list.ids + 1] = job.id
  list.changed, list.wake = true, true
end

function transitions.withdraw(job)
  if not job[OFFER] then return end
  if job[OFFER] == 'r' then
    ready_queue.remove(job)
  elseif form.is_place(job[OFFER]) then
    limits.withdraw(job)
  else
    job[OFFER] = false
    jobs.dirty[job.id] = job
  end
  if S[LIMITS] > 0 then limits.job_left(job) end
end

function transitions.place(job)
  job[QUEUED_AT] = NOW
  if not job.is_plain then job[DUE_AT] = false end
  S[PLACES] = S[PLACES] + 1
  job[SEQ] = S[PLACES]
  if job[SEQ] > PLAIN_MAX then job.is_plain = false end
  jobs.dirty[job.id] = job
  local visited = gates.place(job)
  priority.see(job)
  if gates.has_all(job) then
    ready_queue.add(job)
  elseif priority.lowest() < job[PRIORITY] then
    priority.inherit(job)
  end
  return visited
end

-- Give a job its place: -> QUEUED; return the gates visited.
function transitions.queue(job)
  local old = job[STATE]
  transitions.become(job, QUEUED)
  event_log.note(job, 'queued', old)
  return transitions.place(job)
end

-- Grant a ready job, just taken from the ready queue, to a worker: -> STARTED.
function transitions.start(job, worker, token, lease_until_ms, announces)
  gates.check(job)
  transitions.become(job, STARTED)
  if S[LIMITS] > 0 then limits.enter(job) end
  timers.set(job, LEASE, lease_until_ms)
  job[ATTEMPTS], job[TOKEN], job[WORKER] = job[ATTEMPTS] + 1, token, worker
  if not job.is_plain then
    job[EXPIRY_MS], job[LOOP_BLOCKED] = false, false
    job[REPORTED] = false
  end
  -- By the default policy one more loss is the last only of a job that has had some.
  if (job[POLICY] ~= '' or not job.is_plain) and job[LOSSES] >= form.policy(job)[MAX_LOSSES] - 1 then job[TO_BEGIN] = announces end
  event_log.note(job, 'started', QUEUED)
  job[STARTED_AT], job[FIRST] = NOW, job[FIRST] or NOW
end

-- Note that the attempt of a STARTED job ends.
function transitions.note_attempt(job, outcome, ended_ms)
  local text = (job[HISTORY] or '') .. string.format('%.0f %.0f %s %s\n', job[STARTED_AT], ended_ms, outcome, job[WORKER])
  local _, count = string.gsub(text, '\n', '')
  if count > ATTEMPTS_KEPT then text = string.sub(text, string.find(text, '\n', 1, true) + 1) end
  job[HISTORY] = text
end

-- Take a STARTED job out of the registry and its lease out of the timers; *kind* is the event of the end of its attempt.
function transitions.stop(job, kind)
  local is_first = kind == 'finished' and not job[HISTORY]
  if kind and not is_first then transitions.note_attempt(job, kind, NOW) end
  if S[LIMITS] > 0 then limits.leave(job) end
  timers.drop(job)
  if not job.is_plain then
    if job[UNKNOWN_TASKS] > 0 then job[UNKNOWN_TASKS] = 0 end
    if job[CANCEL] then transitions.forget_cancellation(job) end
  end
  if not is_first then job[WORKER] = false end
end

-- Return a STARTED job to its place: -> QUEUED, ready at once or after a back-off.
function transitions.put_back(job, again_ms, kind, cause)
  transitions.stop(job, kind)
  transitions.become(job, QUEUED)
  event_log.note(job, kind, STARTED, cause)
  if again_ms then
    job[DUE_AT], job[BACKING_OFF] = again_ms, true
    timers.set(job, DUE, again_ms)
  else
    job[DUE_AT] = false
    ready_queue.add(job)
  end
end

-- Take a job's place away until it is due: -> SCHEDULED; return the gates left.
function transitions.postpone(job, due_ms, kind, cause)
  local old = job[STATE]
  if old == STARTED then transitions.stop(job, kind) end
  job[BACKING_OFF] = false
  local left = gates.vacate(job)
  transitions.become(job, SCHEDULED)
  event_log.note(job, kind, old, cause)
  job[DUE_AT] = due_ms
  timers.set(job, DUE, due_ms)
  return left
end

-- Offer a QUEUED job again that has all its gates.
function transitions.offer(job)
  job[DUE_AT], job[BACKING_OFF] = false, false
  ready_queue.add(job)
end

local END = {F = 'finished', X = 'failed', C = 'canceled'}

-- End a job: -> FINISHED, FAILED or CANCELED; return the gates left. (Its twin is called `end`, a word of Lua.)
function transitions.finish(job, state, cause, keep_place)
  local old = job[STATE]
  local is_special = not job.is_plain
  -- It was committed, and is over before it was let go.
  if is_special and job[STAGED] then
    event_log.note(job, 'enqueued', false)
    job[CAME] = edges.came(job)
  end
  if old == STARTED then
    transitions.stop(job, END[state])
  elseif job[OFFER] then
    transitions.withdraw(job)
  end
  timers.drop(job)
  if is_special then
    job[BACKING_OFF], job[EXPIRY_MS], job[DUE_AT], job[CAUSE] = false, false, false, false
    if job[REFUSED_BY] then job[REFUSED_BY] = false end
    if job[UNKNOWN_TASKS] > 0 then job[UNKNOWN_TASKS] = 0 end
  end
  transitions.become(job, state)
  event_log.note(job, END[state], old, cause)
  job[ENDED] = NOW
  if is_special and job[KEY] and job[FIRST] then
    local key_for_ms = form.policy(job)[KEY_FOR]
    if key_for_ms then timers.set_expiry(job, NOW + key_for_ms) end
  end
  if cause then job[CAUSE] = cause end
  if state ~= FINISHED then job[RESULT] = false end
  local left = 0
  if keep_place and job[WALKS] then job[LEVEL] = false else left = gates.vacate(job) end
  local kept_ms = transitions.kept_ms(job, state)
  if job[WATCHERS] and #job[WATCHERS] > 0 then kept_ms = math.max(kept_ms, AWAITED_KEPT_MS) end
  timers.set(job, PRUNE, NOW + kept_ms)
  transitions.ended[#transitions.ended + 1] = job
  return left
end

-- Identifies one end of a job. Its version would not: each write to the record changes it.
function transitions.end_of(job) return job[STATE] .. string.format('%.0f', job[SINCE]) end

-- Give a job its edges: all it depends on, and those of them, and others, it waits for.
function transitions.bind(job, needs, blocked)
  if #needs > 0 then
    job[NEEDS] = HELD
    jobs.dirty[job.id] = job
    for _, need in ipairs(needs) do edges.keep(job, need[1]) end
  end
  for _, need in ipairs(blocked) do edges.add(job, need[1], need[2]) end
end

-- Keep for a job that runs what others have come to, or will, until it cannot run any more.
function transitions.hold(job, needs)
  local known, told = {}, job[NEEDS] and (edges.told[job.id] or redis.call('HGET', store.needs, job.id)) or ''
  for _, need in ipairs(edges.all_needs(job)) do
    known[need[1]] = true
    if job[NEEDS] ~= HELD then edges.keep(job, need[1]) end
  end
  for _, need in ipairs(needs) do
    if not known[need[1]] then told = told .. (told == '' and '' or '\n') .. need[2] .. ' ' .. need[1] end
    edges.keep(job, need[1])
  end
  edges.told[job.id], job[NEEDS] = told, HELD
  jobs.dirty[job.id] = job
end

-- Let a STARTED job give up its lease and its place, and wait for its children: -> DEFERRED. One that is run again when they are
-- over is told to depend on them, so that what they have come to is kept for it.
function transitions.await_children(job, children, is_again)
  transitions.stop(job, 'deferred')
  gates.vacate(job)
  transitions.become(job, DEFERRED)
  event_log.note(job, 'deferred', STARTED)
  job[PARENT] = not is_again
  local held = {}
  if job[NEEDS] == HELD and job[PORTIONS] then
    for _, child in ipairs(children) do held[child[1]] = redis.call('ZSCORE', store.waiting(child[1]), job.id) and true end
  elseif job[NEEDS] == HELD then
    for _, need in ipairs(edges.needs_of(job)) do held[need[1]] = true end
  end
  if is_again then transitions.hold(job, children) end
  for _, child in ipairs(children) do
    edges.add(job, child[1], held[child[1]] and string.sub(child[2], 1, 3) .. IS_KEPT or child[2])
  end
end

-- Work out when a job is due and when it expires, counted from a time.
function transitions.set_time(job, delay_ms, run_at_ms, from_ms)
  local due_ms = run_at_ms
  if delay_ms and delay_ms > 0 then due_ms = from_ms + delay_ms end
  job[DUE_AT] = due_ms and due_ms > from_ms and due_ms or false
  job[EXPIRY_MS] = false
  local within_ms = form.policy(job)[START_WITHIN]
  if within_ms then timers.set_expiry(job, (job[DUE_AT] or from_ms) + within_ms) end
end

-- Let the time that a job waits for, before its first attempt or the next, be now; its timer fires as any other.
function transitions.make_due(job)
  if job[DUE_AT] <= NOW then return end
  job[DUE_AT] = NOW
  timers.set(job, DUE, NOW)
  if job[EXPIRY_MS] then timers.set_expiry(job, NOW + form.policy(job)[START_WITHIN]) end
end

end)
