--[[ timers: due times of jobs; mirrors core.structures.timers.
  TIMERS holds dues and expiries, and ends of pauses (lib/structures/pauses), LEASES leases, PRUNES the ends of records, by ms; members are the kind, the sortable number
  and the id. Entries are taken in order of time, kind and number; those that are out of date are passed over.
  The first time of each set stands in the state, so that a set is asked only when something in it is due, or when its
  first entry may have gone: `stale` names those whose first time has to be read again. ]]
local timers = {stale = {}}

do
function timers.member(kind, job) return kind .. form.tag(job) end

local FIRST_TIMES = {NEXT_TIMER, NEXT_LEASE, NEXT_PRUNE}
local SET_BY_FIRST = {[NEXT_TIMER] = 'timers', [NEXT_LEASE] = 'leases', [NEXT_PRUNE] = 'prunes'}
-- The sets that have been read in this step, by the field of their first time.
local due_stored = {}
local due_added, due_added_at, due_sorted = {}, 1, true

local function is_true(kind, time_ms, job)
  if kind == EXPIRY then return job[EXPIRY_MS] == time_ms end
  return job[TIMER] == kind and job[TIMER_MS] == time_ms
end

local function add_due(kind, time_ms, job)
  jobs.dirty[job.id] = job
  if time_ms <= NOW then
    due_added[#due_added + 1] = {time_ms, kind, job[NUMBER], job}
    due_sorted = false
  end
end

function timers.set(job, kind, time_ms)
  job[TIMER], job[TIMER_MS] = kind, time_ms
  add_due(kind, time_ms, job)
end

function timers.drop(job)
  job[TIMER], job[TIMER_MS] = false, false
  jobs.dirty[job.id] = job
end

function timers.set_expiry(job, time_ms)
  job[EXPIRY_MS] = time_ms
  add_due(EXPIRY, time_ms, job)
end

local function earlier(left, right)
  if left[1] ~= right[1] then return left[1] < right[1] end
  if left[2] ~= right[2] then return left[2] < right[2] end
  return left[3] < right[3]
end

-- The first entry of a stored set that is due and true, as {time, kind, number, job, where it is from}.
local function first_stored(first)
  local from = due_stored[first]
  if not from then
    if S[first] > NOW or S[first] < 0 then return nil end
    from = {key = store[SET_BY_FIRST[first]], first = first, entries = {}, numbers = {}, ids = {}, at = 1, offset = 0}
    due_stored[first] = from
  end
  while true do
    if from.at > #from.entries then
      if from.read or S[from.first] > NOW or S[from.first] < 0 then return nil end
      timers.stale[from.first] = true
      from.entries = redis.call('ZRANGEBYSCORE', from.key, '-inf', string.format('%.0f', NOW), 'WITHSCORES', 'LIMIT', from.offset, 32)
      from.at, from.offset, from.read = 1, from.offset + 32, #from.entries < 64
      from.numbers, from.ids = {}, {}
      local of_jobs = {}
      for at = 1, #from.entries, 2 do
        local index = (at + 1) / 2
        from.numbers[index], from.ids[index] = form.split(from.entries[at], 2)
        if string.sub(from.entries[at], 1, 1) ~= RESUME then of_jobs[#of_jobs + 1] = from.ids[index] end
      end
      jobs.prefetch(of_jobs)
    else
      local index = (from.at + 1) / 2
      local kind, time_ms = string.sub(from.entries[from.at], 1, 1), tonumber(from.entries[from.at + 1])
      if kind == RESUME then
        local name = from.ids[index]
        if pauses.is_timed(name, from.numbers[index], time_ms) then return {time_ms, kind, from.numbers[index], name, from} end
      else
        local job = jobs.known(from.ids[index], from.key)
        if is_true(kind, time_ms, job) then return {time_ms, kind, from.numbers[index], job, from} end
      end
      from.at = from.at + 2
    end
  end
end

function timers.first_due()
  local first = nil
  for at = 1, #FIRST_TIMES do
    local entry = first_stored(FIRST_TIMES[at])
    if entry and (not first or earlier(entry, first)) then first = entry end
  end
  if due_added_at <= #due_added then
    if not due_sorted then
      local rest = {}
      for at = due_added_at, #due_added do rest[#rest + 1] = due_added[at] end
      table.sort(rest, earlier)
      due_added, due_added_at, due_sorted = rest, 1, true
    end
    while due_added[due_added_at] and not is_true(due_added[due_added_at][2], due_added[due_added_at][1], due_added[due_added_at][4]) do
      due_added_at = due_added_at + 1
    end
    local entry = due_added[due_added_at]
    if entry and (not first or earlier(entry, first)) then first = entry end
  end
  return first
end

-- Take out the first entry that is due; its job has that timer no more. Of a pause the name is returned in place of a job.
function timers.pop_due()
  local entry = timers.first_due()
  if not entry then return nil end
  local from = entry[5]
  if from then from.at = from.at + 2 else due_added_at = due_added_at + 1 end
  local kind, job = entry[2], entry[4]
  if kind == EXPIRY then
    job[EXPIRY_MS] = false
    jobs.dirty[job.id] = job
  elseif kind ~= RESUME then
    timers.drop(job)
  end
  return kind, job
end

-- Note that an entry of a set, whose first time the state has at *first*, is put in or taken out.
function timers.see_put(first, time_ms)
  if time_ms < S[first] or S[first] < 0 then S[first] = time_ms end
end

function timers.see_taken(first, time_ms)
  if time_ms <= S[first] then timers.stale[first] = true end
end

-- Read the first time of a set again.
function timers.read_first(first)
  S[first] = tonumber(redis.call('ZRANGE', store[SET_BY_FIRST[first]], 0, 0, 'WITHSCORES')[2]) or -1
end

-- Read the first times of all sets again.
function timers.read_all()
  for at = 1, #FIRST_TIMES do timers.read_first(FIRST_TIMES[at]) end
end

-- When the first stored timer comes up or a schedule comes to be due, and when the first timer that is a due time or an
-- expiry; false if there is none.
function timers.next_ms()
  local next_ms = false
  for at = 1, #FIRST_TIMES do
    local place = FIRST_TIMES[at]
    if timers.stale[place] then timers.read_first(place) end
    local time_ms = S[place]
    if time_ms >= 0 and (not next_ms or time_ms < next_ms) then next_ms = time_ms end
  end
  local due_ms = S[NEXT_TIMER] >= 0 and S[NEXT_TIMER]
  local schedule_ms = S[NEXT_SCHEDULE] >= 0 and schedules.next_ms()
  if schedule_ms then next_ms = math.min(next_ms or schedule_ms, schedule_ms) end
  -- A limit that is looked at again is as good as a job that comes to be due.
  local look_ms = S[LIMITS] > 0 and tonumber(redis.call('ZRANGE', store.looks, 0, 0, 'WITHSCORES')[2])
  if look_ms then
    next_ms = math.min(next_ms or look_ms, look_ms)
    due_ms = math.min(due_ms or look_ms, look_ms)
  end
  return next_ms, due_ms
end
end
