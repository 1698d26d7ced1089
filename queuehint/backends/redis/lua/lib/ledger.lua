--[[ ledger: the moves of a job, as core.ledger makes them: state, gates, offers, timers and edges change together.
  Counts and indexes are not changed here: they follow from the heads, see lib/commit. ]]
local KEEP = {F = tonumber(ARGV[4]), X = tonumber(ARGV[5]), C = tonumber(ARGV[6]), service = tonumber(ARGV[7])}
local untold, ended, errors_added = {}, {}, {}

local function become(job, state)
  if not string.find(MOVES[job[STATE]], state, 1, true) then
    corrupt('job ' .. job.id .. ' is ' .. job[STATE] .. ' and cannot become ' .. state)
  end
  job[STATE] = state
  job[VERSION] = job[VERSION] + 1
  dirty[job.id] = job
end

local function kept_ms(job, state)
  local policy = policy_of(job)
  if policy[RETENTION] then return policy[RETENTION] end
  if policy[HAS_SERVICE] then return KEEP.service end
  return KEEP[state]
end

-- What of a worker's jobs it has not been told to stop, in the order of asking.
local function untold_of(worker)
  local list = untold[worker]
  if not list then
    local stored = redis.call('HGET', UNTOLD, worker)
    list = {ids = stored and cmsgpack.unpack(stored) or {}, stored = stored and true}
    untold[worker] = list
  end
  return list
end

local function tell(job)
  local list = untold_of(job[WORKER])
  for at, id in ipairs(list.ids) do
    if id == job.id then
      table.remove(list.ids, at)
      list.changed = true
      return
    end
  end
end

local function ask_to_stop(job, cause)
  job[CANCEL] = cause
  job[VERSION] = job[VERSION] + 1
  dirty[job.id] = job
  local list = untold_of(job[WORKER])
  list.ids[#list.ids + 1] = job.id
  list.changed, list.wake = true, true
end

local function withdraw(job)
  if job[OFFER] == 'r' then
    withdraw_ready(job)
  elseif job[OFFER] then
    job[OFFER] = false
    dirty[job.id] = job
  end
end

local function take_place(job)
  job[DUE_AT], job[QUEUED_AT] = false, NOW
  S[PLACES] = S[PLACES] + 1
  job[SEQ] = S[PLACES]
  dirty[job.id] = job
  local visited = place_walks(job)
  if has_all_gates(job) then offer_ready(job) end
  return visited
end

-- Give a job its place: -> QUEUED; return the gates visited.
local function queue(job)
  become(job, QUEUED)
  return take_place(job)
end

-- Take a STARTED job out of the registry and its lease out of the timers.
local function stop(job)
  drop_timer(job)
  job[STRANGERS] = 0
  if job[CANCEL] then tell(job) end
  job[WORKER] = false
end

-- Return a STARTED job to its place: -> QUEUED, ready at once or after a back-off.
local function put_back(job, again_ms)
  stop(job)
  become(job, QUEUED)
  if again_ms then
    job[DUE_AT], job[BACKING_OFF] = again_ms, true
    set_timer(job, DUE, again_ms)
  else
    job[DUE_AT] = false
    offer_ready(job)
  end
end

-- Take a job's place away until it is due: -> SCHEDULED; return the gates left.
local function postpone(job, due_ms)
  if job[STATE] == STARTED then stop(job) end
  job[BACKING_OFF] = false
  local left = vacate(job)
  become(job, SCHEDULED)
  job[DUE_AT] = due_ms
  set_timer(job, DUE, due_ms)
  return left
end

-- Offer a QUEUED job again that has all its gates.
local function offer(job)
  job[DUE_AT], job[BACKING_OFF] = false, false
  offer_ready(job)
end

-- End a job: -> FINISHED, FAILED or CANCELED; return the gates left.
local function end_job(job, state, cause, keep_place)
  if job[STATE] == STARTED then
    stop(job)
  elseif job[OFFER] then
    withdraw(job)
  end
  job[BACKING_OFF], job[STRANGERS] = false, 0
  drop_timer(job)
  job[EXPIRY_MS] = false
  if job[BLOCKED] > 0 then drop_edges(job) end
  become(job, state)
  job[CAUSE], job[DUE_AT], job[ENDED] = cause or false, false, NOW
  local left = 0
  if not (keep_place and job[WALKS]) then left = vacate(job) end
  set_timer(job, PRUNE, NOW + kept_ms(job, state))
  ended[#ended + 1] = job
  if job[AWAITED] and next_dependent(job.id) then push_leftover({'r', job.id}) end
  return left
end

-- Bring a dead job back: FAILED -> QUEUED, to the place it held or to a new one.
local function redrive(job)
  become(job, QUEUED)
  drop_timer(job)
  S[NUMBERS] = S[NUMBERS] + 1
  job[SINCE] = S[NUMBERS]
  job[ATTEMPTS], job[LOSSES] = 0, 0
  job[CAUSE], job[CANCEL], job[ENDED], job[RESULT] = false, false, false, false
  if job[WALKS] then
    job[QUEUED_AT] = NOW
    offer_ready(job)
  else
    take_place(job)
  end
end

-- Work out when a job is due and when it expires.
local function set_time(job, delay_ms, run_at_ms)
  local due_ms = run_at_ms
  if delay_ms and delay_ms > 0 then due_ms = NOW + delay_ms end
  job[DUE_AT] = due_ms and due_ms > NOW and due_ms or false
  job[EXPIRY_MS] = false
  local within_ms = policy_of(job)[START_WITHIN]
  if within_ms then set_expiry(job, (job[DUE_AT] or NOW) + within_ms) end
end

local function record_error(job, kind, message, traceback)
  if not kind then return end
  local added = errors_added[job.id]
  if not added then
    added = {}
    errors_added[job.id] = added
  end
  added[#added + 1] = cmsgpack.pack({job[ATTEMPTS], NOW, kind, message, traceback})
  job[ERRORS] = math.min(job[ERRORS] + 1, 20)
  dirty[job.id] = job
end
