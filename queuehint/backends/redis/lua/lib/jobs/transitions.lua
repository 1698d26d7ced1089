--[[ transitions: the transitions of a job; mirrors core.jobs.table and core.jobs.archive: state, gates, offers, timers, edges.
  Counts and indexes are not changed here: they follow from the heads, see lib/request/write. ]]
local AWAITED_KEPT_MS = 60000 -- @const
local transitions = {untold = {}, ended = {}, errors_added = {}, events = {}, drops_events = false, renewed = {}}

lazily(transitions, function()
local keep, kept_by_service = nil, nil

-- How long records are kept: what the namespace was told (retain.lua), else what ARGV says.
local function retention()
  if not request.retention then
    return {F = tonumber(ARGV[4]), X = tonumber(ARGV[5]), C = tonumber(ARGV[6]), all = tonumber(string.match(ARGV[7], '^[^\n]*')), named = ARGV[7]}
  end
  local finished, failed, canceled, of_services = string.match(request.retention, '^(%d+) (%d+) (%d+) (%d+)')
  if not of_services then corrupt('the retention in ' .. store.meta .. ' cannot be read') end
  return {F = tonumber(finished), X = tonumber(failed), C = tonumber(canceled), all = tonumber(of_services), named = request.retention}
end

-- How long records of a service are kept; those of single services stand in lines behind all else, name and ms.
local function kept_of(service)
  if not kept_by_service then
    kept_by_service = {}
    for name, ms in string.gmatch(keep.named, '\n([^\n]+)\n(%d+)') do kept_by_service[name] = tonumber(ms) end
  end
  return kept_by_service[service] or keep.all
end

local is_followed = S[FOLLOWED] > 0 and S[FOLLOWED] >= NOW

-- Note a move that was made, from *old* (false: the job is new) to the state the job has now; see core.structures.event_log. A start
-- before its time is set.
function transitions.note(job, kind, old, cause)
  local total = TOTAL_OF[kind]
  if total then S[total] = S[total] + 1 end
  S[JOURNAL] = S[JOURNAL] + 1
  if not is_followed then return end
  local since = old == STARTED and job[STARTED_AT]
  if kind == 'started' and (not job[STARTED_AT] or job[STARTED_AT] < job[QUEUED_AT]) then since = job[QUEUED_AT] end
  transitions.events[#transitions.events + 1] = table.concat({
    kind, string.format('%.0f', NOW), old or '-', kind == 'pruned' and '-' or job[STATE], string.format('%.0f', job[NUMBER]),
    job[ATTEMPTS], since and string.format('%.0f', NOW - since) or '', job[TASK], job[POOL], job[USER], job.id,
    cause or '',
  }, '\n')
end

function transitions.become(job, state)
  if not string.find(MOVES[job[STATE]], state, 1, true) then
    corrupt('job ' .. job.id .. ' is ' .. job[STATE] .. ' and cannot become ' .. state)
  end
  job[STATE] = state
  job[VERSION] = job[VERSION] + 1
  jobs.dirty[job.id] = job
end

function transitions.kept_ms(job, state)
  local policy = form.policy(job)
  if policy[RETENTION] then return policy[RETENTION] end
  keep = keep or retention()
  if job[SERVICE] ~= '' then return kept_of(job[SERVICE]) end
  return keep[state]
end

-- What of a worker's jobs it has not been told to stop, in the order of asking.
function transitions.untold_of(worker)
  local list = transitions.untold[worker]
  if not list then
    local stored = redis.call('HGET', store.untold, worker)
    list = {ids = stored and cmsgpack.unpack(stored) or {}, stored = stored and true}
    transitions.untold[worker] = list
  end
  return list
end

function transitions.tell(job)
  local list = transitions.untold_of(job[WORKER])
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
  local list = transitions.untold_of(job[WORKER])
  list.ids[#list.ids + 1] = job.id
  list.changed, list.wake = true, true
end

function transitions.withdraw(job)
  if not job[OFFER] then return end
  if job[OFFER] == 'r' then
    ready_queue.withdraw(job)
  elseif form.is_place(job[OFFER]) then
    limits.withdraw(job)
  else
    job[OFFER] = false
    jobs.dirty[job.id] = job
  end
  if S[LIMITS] > 0 then limits.left(job) end
end

function transitions.take_place(job)
  job[DUE_AT], job[QUEUED_AT] = false, NOW
  S[PLACES] = S[PLACES] + 1
  job[SEQ] = S[PLACES]
  jobs.dirty[job.id] = job
  local visited = gates.place(job)
  priority.see(job)
  if gates.has_all(job) then
    ready_queue.offer(job)
  elseif priority.lowest < job[PRIORITY] then
    priority.hand_on(job)
  end
  return visited
end

-- Give a job its place: -> QUEUED; return the gates visited.
function transitions.queue(job)
  local old = job[STATE]
  transitions.become(job, QUEUED)
  transitions.note(job, 'queued', old)
  return transitions.take_place(job)
end

-- Take a STARTED job out of the registry and its lease out of the timers.
function transitions.stop(job)
  if S[LIMITS] > 0 then limits.leave(job) end
  timers.drop(job)
  job[STRANGERS] = 0
  if job[CANCEL] then transitions.tell(job) end
  job[WORKER] = false
end

-- Return a STARTED job to its place: -> QUEUED, ready at once or after a back-off.
function transitions.put_back(job, again_ms, kind, cause)
  transitions.stop(job)
  transitions.become(job, QUEUED)
  transitions.note(job, kind, STARTED, cause)
  if again_ms then
    job[DUE_AT], job[BACKING_OFF] = again_ms, true
    timers.set(job, DUE, again_ms)
  else
    job[DUE_AT] = false
    ready_queue.offer(job)
  end
end

-- Take a job's place away until it is due: -> SCHEDULED; return the gates left.
function transitions.postpone(job, due_ms, kind, cause)
  local old = job[STATE]
  if old == STARTED then transitions.stop(job) end
  job[BACKING_OFF] = false
  local left = gates.vacate(job)
  transitions.become(job, SCHEDULED)
  transitions.note(job, kind, old, cause)
  job[DUE_AT] = due_ms
  timers.set(job, DUE, due_ms)
  return left
end

-- Offer a QUEUED job again that has all its gates.
function transitions.offer(job)
  job[DUE_AT], job[BACKING_OFF] = false, false
  ready_queue.offer(job)
end

local END = {F = 'finished', X = 'failed', C = 'canceled'}

-- End a job: -> FINISHED, FAILED or CANCELED; return the gates left.
function transitions.finish(job, state, cause, keep_place)
  local old = job[STATE]
  -- It was committed, and is over before it was let go.
  if job[STAGED] then
    transitions.note(job, 'enqueued', false)
    job[CAME] = edges.came(job)
  end
  if old == STARTED then
    transitions.stop(job)
  elseif job[OFFER] then
    transitions.withdraw(job)
  end
  job[BACKING_OFF], job[STRANGERS] = false, 0
  timers.drop(job)
  job[EXPIRY_MS] = false
  transitions.become(job, state)
  transitions.note(job, END[state], old, cause)
  job[CAUSE], job[DUE_AT], job[ENDED] = cause or false, false, NOW
  if state ~= FINISHED then job[RESULT] = false end
  local left = 0
  if keep_place and job[WALKS] then job[LEVEL] = false else left = gates.vacate(job) end
  local kept_ms = transitions.kept_ms(job, state)
  if job[WATCHERS] and #job[WATCHERS] > 0 then kept_ms = math.max(kept_ms, AWAITED_KEPT_MS) end
  timers.set(job, PRUNE, NOW + kept_ms)
  transitions.ended[#transitions.ended + 1] = job
  transitions.tell_dependents(job)
  -- A dead job may be redriven: what it needs is kept for it.
  if job[BLOCKED] > 0 or (job[NEEDS] == HELD and state ~= FAILED) then work.push({'p', job.id}) end
  return left
end

-- What tells an end of a job from another one: not its version, which whoever writes to the record changes too.
function transitions.end_of(job) return job[STATE] .. string.format('%.0f', job[SINCE]) end

-- Begin to resolve the edges to a job that is over. A sweep over dependents: kind, whose, the number it has come to, the
-- number at which it began, which end of the job it is about, and when it began.
function transitions.tell_dependents(job)
  transitions.end_telling(job)
  if not edges.has_dependents(job) then return end
  work.push({'r', job.id, 0, S[NUMBERS], transitions.end_of(job), NOW})
  job[AWAITED] = TELLING
  jobs.dirty[job.id] = job
end

-- Note that the edges to a job are resolved, or open again.
function transitions.end_telling(job)
  if job[AWAITED] == TELLING then
    job[AWAITED] = true
    jobs.dirty[job.id] = job
  end
end

-- Give a job its edges: all it depends on, and those of them, and others, it waits for.
function transitions.bind(job, needs, blocked)
  if #needs > 0 then
    job[NEEDS] = HELD
    jobs.dirty[job.id] = job
    for _, need in ipairs(needs) do edges.keep(job, need[1]) end
  end
  for _, need in ipairs(blocked) do edges.add(job, need[1], need[2]) end
end

-- Let a STARTED job give up its lease and its place, and wait for its children: -> DEFERRED.
function transitions.await_children(job, children)
  transitions.stop(job)
  gates.vacate(job)
  transitions.become(job, DEFERRED)
  transitions.note(job, 'deferred', STARTED)
  job[PARENT] = true
  local held = {}
  for _, need in ipairs(job[NEEDS] == HELD and edges.needs_of(job) or {}) do held[need[1]] = true end
  for _, child in ipairs(children) do
    edges.add(job, child[1], held[child[1]] and string.sub(child[2], 1, 3) .. IS_KEPT or child[2])
  end
end

-- Have the jobs of a submission in parts be there, all at once; return how many.
function transitions.commit(start)
  local staged = edges.count(start.id)
  transitions.close_start(start, FINISHED)
  -- The commit takes a number itself: what came after it, by enqueue or commit, is not what these depend on.
  S[NUMBERS] = S[NUMBERS] + 1
  start[SINCE] = S[NUMBERS]
  S[COMMITTING] = S[COMMITTING] + 1
  S[COUNT_OF.D], S[HIDDEN] = S[COUNT_OF.D] + staged, S[HIDDEN] - staged
  work.push({'k', start.id, 0, S[NUMBERS]})
  return staged
end

function transitions.close_start(start, state)
  start[STATE], start[ENDED], start[EXPIRY_MS] = state, NOW, false
  jobs.dirty[start.id] = start
end

-- Let go a job of a submission that was committed: it counts as enqueued then. Returns when that was.
function transitions.unstage(job)
  local start = jobs.of(START_MARK .. job[STAGED])
  edges.close(job, start.id)
  job[STAGED], job[CAME], job[ENQUEUED] = false, start[SINCE], start[ENDED]
  jobs.dirty[job.id] = job
  transitions.note(job, 'enqueued', false)
  return start[ENDED]
end

-- Let a DEFERRED job without edges wait for its time or others, or take its place; return the gates visited.
function transitions.begin(job, needs, blocked, commit_ms)
  transitions.bind(job, needs, blocked)
  transitions.set_time(job, job[DELAYED], job[RUN_AT], commit_ms)
  job[DELAYED], job[RUN_AT] = false, false
  if job[DUE_AT] then
    transitions.become(job, SCHEDULED)
    transitions.note(job, 'scheduled', DEFERRED)
    timers.set(job, DUE, job[DUE_AT])
    return 0
  end
  return #blocked > 0 and 0 or transitions.queue(job)
end

-- Drop a job of a submission that was never committed, or the start of one, as if it had never been.
function transitions.remove(job)
  edges.release(job)
  job.pruned, job[EXPIRY_MS] = true, false
  jobs.dirty[job.id] = job
  -- Whether jobs were hidden is told by the start of their submission.
  if not jobs.is_start(job.id) then jobs.all[job.id] = false end
end

-- Bring back a job that was canceled because of another: CANCELED -> DEFERRED or QUEUED; return the gates visited.
function transitions.revive(job, needs, blocked)
  job[FALLEN] = false
  transitions.become(job, #blocked > 0 and DEFERRED or QUEUED)
  timers.drop(job)
  S[NUMBERS] = S[NUMBERS] + 1
  job[SINCE] = S[NUMBERS]
  transitions.renew(job)
  transitions.note(job, 'redriven', CANCELED)
  transitions.bind(job, needs, blocked)
  local within_ms = form.policy(job)[START_WITHIN]
  if within_ms and not job[FIRST] then timers.set_expiry(job, NOW + within_ms) end
  return #blocked > 0 and 0 or transitions.take_place(job)
end

-- Have an over job begin anew: forget its attempts and its end.
function transitions.renew(job)
  transitions.end_telling(job)
  job[ATTEMPTS], job[LOSSES] = 0, 0
  job[CAUSE], job[CANCEL], job[ENDED], job[RESULT] = false, false, false, false
  job[PARENT], job[CHILD_FAILED], job[TO_BEGIN] = false, false, false
  -- No index knows yet that it has its key again.
  local key = job[KEY]
  if key then
    transitions.renewed[key] = transitions.renewed[key] or {}
    table.insert(transitions.renewed[key], job)
  end
end

-- Bring a dead job back: FAILED -> QUEUED, to the place it held or to a new one.
function transitions.redrive(job)
  transitions.become(job, QUEUED)
  timers.drop(job)
  S[NUMBERS] = S[NUMBERS] + 1
  job[SINCE] = S[NUMBERS]
  transitions.renew(job)
  transitions.note(job, 'redriven', FAILED)
  if job[WALKS] then
    job[QUEUED_AT] = NOW
    ready_queue.offer(job)
  else
    transitions.take_place(job)
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

function transitions.record_error(job, kind, message, traceback)
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
end)
