--[[ examine_heads: for the doctor, the entries that the heads require. Indexes are functions of the heads: the entries are
  those that lib/structures/indexes would write for a head if it were new. So no index is named here, and the result of many
  steps is compared with that of one step from nothing. Each reply shows one moment. ]]
-- @include doctor/lib/examine
do
-- Counters of the state that say how many jobs there are of a kind.
local COUNTED = {scheduled = COUNT_OF.S, deferred = COUNT_OF.D, queued = COUNT_OF.Q, started = COUNT_OF.R,
  finished = COUNT_OF.F, failed = COUNT_OF.X, canceled = COUNT_OF.C, holding = HOLDING, unknown_tasks = UNKNOWN_TASKS_NOW,
  backing_off = BACKING_OFF_NOW, open_edges = OPEN_EDGES, limited = LIMITED, staged = HIDDEN,
  level_1 = LEVELS + 1, level_2 = LEVELS + 2, level_3 = LEVELS + 3, level_4 = LEVELS + 4, level_5 = LEVELS + 5}
-- Others that a repair may set or raise.
local OTHERS = {numbers = NUMBERS, places = PLACES, turn = TURN, pause = PAUSE, marks = MARKS, drawn = DRAWN, epoch = EPOCH,
  paused = PAUSED, closed = CLOSED_PATHS, refused = REFUSED_POOLS, enqueued = ENQUEUED_IN_ALL, pruned = PRUNED_IN_ALL, shared_values = SHARED_VALUES,
  limits = LIMITS, watched = WATCHED, schedules = SCHEDULES, schedule_versions = SCHEDULE_VERSIONS, next_schedule = NEXT_SCHEDULE, weighted = WEIGHTED, users_seen = USERS_SEEN, dropped = DROPPED_IN_ALL,
  next_timer = NEXT_TIMER, next_lease = NEXT_LEASE, next_prune = NEXT_PRUNE, next_shared = NEXT_SHARED, left = LEFT_STORED}
local LEFT_READ_MAX, UNITS = 10000, 500 -- @const

examine.counted, examine.others = COUNTED, OTHERS

local heads_read, said, fields_read, needs_read, left_kinds, started_at = {}, {}, {}, {}, nil, nil
-- looks_through: whether all portions of what a job depends on are read; units: of dependencies and of numbers of records, before the rest is left over.
examine.looks_through, examine.units = false, UNITS

-- A job's head; false if there is none, nil if it cannot be read.
function examine.head(id)
  local known = heads_read[id]
  if not known then
    local is_read, job = pcall(jobs.of, id)
    if is_read and job then
      is_read = COUNT_OF[job[STATE]] and type(job[NUMBER]) == 'number' and type(job[SEQ]) == 'number'
        and type(job[CLAIMS]) == 'string' and (not job[SHORT_SPEC] or type(job[SHORT_SPEC]) == 'string')
    end
    known = {}
    if is_read then known.job = job end
    heads_read[id] = known
  end
  return known.job
end

-- The entries that would be written for a job if it were new, {[name] = {[member] = score}}, and the changes of counters;
-- nil if the head makes no sense to lib/structures/indexes.
function examine.entries(id)
  if said[id] then return said[id].entries, said[id].counts end
  local job = examine.head(id)
  if not job then return nil end
  local state, noted, counts = {unpack(S)}, {}, {}
  for _, at in pairs(COUNTED) do S[at] = 0 end
  -- Limits of unfinished jobs count it already.
  S[WATCHED] = 0
  stand_in.noted = noted
  local is_done = pcall(indexes.derive, id, nil, job)
  indexes.flush()
  stand_in.noted = false
  for name, at in pairs(COUNTED) do counts[name] = S[at] end
  for at = 1, #state do S[at] = state[at] end
  local entries = nil
  if is_done then
    entries = {}
    for _, write in ipairs(noted) do
      if write[1] == 'ZADD' then
        local name = examine.name(write[2])
        local set = entries[name] or {}
        entries[name] = set
        for at = 3, #write, 2 do set[write[at + 1]] = tonumber(write[at]) end
      end
    end
  end
  said[id] = {entries = entries, counts = counts}
  return entries, counts
end

-- Whether a piece of work is among the leftovers, or any of its kind.
function examine.is_left(kind, what, mark)
  if not left_kinds then
    left_kinds = {}
    for _, packed in ipairs(redis.call('LRANGE', store.left, 0, LEFT_READ_MAX - 1)) do
      local is_read, item = pcall(cmsgpack.unpack, packed)
      if is_read and type(item) == 'table' then
        left_kinds[item[1]] = true
        -- A sweep behind a dead job is known by that job.
        if item[1] == 'c' then left_kinds['c' .. tostring(item[5]) .. '\n'] = true
        else left_kinds[tostring(item[1]) .. tostring(item[2]) .. '\n' .. tostring(item[1] == 'g' and item[3] or '')] = true end
      end
    end
    left_kinds.unread = redis.call('LLEN', store.left) > LEFT_READ_MAX
  end
  if not what then return left_kinds.unread or left_kinds[kind] or false end
  return left_kinds.unread or left_kinds[kind .. tostring(what) .. '\n' .. tostring(mark or '')] or false
end

-- The policy of an edge in the text of some dependencies, as edges keeps it; nil if that does not name it.
local function policy_in(text, id)
  local at = string.find(text, ' ' .. id, 1, true)
  while at do
    local behind = string.byte(text, at + #id + 1)
    if not behind or behind == 10 then return string.sub(text, at - 4, at - 1) end
    at = string.find(text, ' ' .. id, at + 1, true)
  end
end

-- The policy of an edge to a job that another is told to depend on and may still need; false if it is not. Of one with portions
-- nil, which is not known, unless these are to be looked through: 100 of 1 000 dependencies take some ms.
function examine.held(job, dependency_id)
  if job[NEEDS] ~= HELD then return false end
  if job[PORTIONS] and not examine.looks_through then return nil end
  for portion = 0, job[PORTIONS] or 0 do
    local field = edges.field(job.id, portion)
    needs_read[field] = needs_read[field] or redis.call('HGET', store.needs, field) or ''
    local policy = policy_in(needs_read[field], dependency_id)
    if policy then return policy end
  end
  return false
end

-- The number of log lines in a head, as far as they are kept.
function examine.logs_kept(job) return math.min(job[LOGS], 1000) end

-- Whether an id is that of the job of a number, as far as its head can be read.
function examine.is_of(number, id)
  local job = examine.head(id)
  return job == nil or (record_index.has_id(job) and job[NUMBER] == number)
end

-- Whether the record of a number is there and has a term.
function examine.has_term(number, term)
  local id = record_index.id_of(number)
  local job = id and examine.head(id)
  if job == nil then return true end
  if not record_index.lists(job) or job[NUMBER] ~= number then return false end
  for _, each in ipairs(record_index.terms(job)) do
    if each == term then return true end
  end
  return false
end

-- A field of the index that has bits: the text, and the byte that stands before that of the first number.
local function bits_of(field)
  local bits = redis.call('HGET', store.index, field) or ''
  if #bits < 5 or #bits % 4 ~= 1 then return {bits = ''} end
  return {bits = bits, before = string.byte(bits) * 4 - 2}
end

-- The times of a block.
local function times_of(field)
  local first_ms, last_ms = record_bits.times(redis.call('HGET', store.index, field))
  return {first_ms = first_ms or 0, last_ms = last_ms or -1}
end

-- Where a job is missing from the index of records; nil if it is complete.
function examine.unlisted(id, job)
  if record_index.has_id(job) and record_index.id_of(job[NUMBER]) ~= id then return 'index' end
  if not record_index.lists(job) then return nil end
  local place = job[NUMBER] % PER_BLOCK
  local block, mask = (job[NUMBER] - place) / PER_BLOCK, MASKS[place % 8]
  local times_field = record_index.field(TIMES, block)
  local times = fields_read[times_field] or times_of(times_field)
  fields_read[times_field] = times
  if job[ENQUEUED] < times.first_ms or job[ENQUEUED] > times.last_ms then return 'index' end
  for _, term in ipairs(record_index.terms(job)) do
    local field = record_index.field(term, block)
    local found = fields_read[field] or bits_of(field)
    fields_read[field] = found
    local byte = found.before and math.floor(place / 8) >= found.before + 2 and string.byte(found.bits, math.floor(place / 8) - found.before) or 0
    if byte % (2 * mask) < mask then return 'index' end
  end
end

-- How many limits hold back or count jobs of a task or a pool, a limit that does both twice, and how many bound what is
-- unfinished.
function examine.count_limits()
  local holding, watched = 0, 0
  local stored = redis.call('HGETALL', store.limits)
  for at = 2, #stored, 2 do
    local limit = examine.limit(stored[at - 1], stored[at])
    if limit and limit[1] > 0 then holding = holding + 1 end
    if limit and limit[10] then holding = holding + 1 end
    if limit and limit[5] then watched = watched + 1 end
  end
  return holding, watched
end

-- Go through the limits that count the unfinished jobs of a task or a pool: call a function with a name and this number.
function examine.each_count(add)
  local stored = redis.call('HGETALL', store.limits)
  for at = 2, #stored, 2 do
    local limit = examine.limit(stored[at - 1], stored[at])
    if limit and limit[10] then add('unfinished:' .. stored[at - 1], limit[10]) end
  end
end

-- The meter of a child in a counter; nil if its limit has none by child, or the values are impossible.
function examine.meter(limiter, counter)
  local meter = {spent = counter[5], at = counter[6], log = counter[7]}
  return limits.is_each(limiter) and limiter.tokens and meters.is_sound(meter, limiter) and meter or nil
end

-- How many jobs run at a place, by the heads of all that run.
function examine.started_at(place)
  if not started_at then
    started_at = {}
    for _, member in ipairs(redis.call('ZRANGE', store.leases, 0, -1)) do
      local job = examine.head(examine.id_of_tag(member, 2))
      local is_read, places = pcall(function() return job and job[STATE] == STARTED and limits.places(job) or {} end)
      for _, at in ipairs(is_read and places or {}) do started_at[at.place] = (started_at[at.place] or 0) + meters.cost_of(job) end
    end
  end
  return started_at[place] or 0
end

-- What follows at a place from how many jobs run there: how many are parked, whether to check it again.
function examine.counter(limiter, place, started)
  local parked = redis.call('ZLEXCOUNT', store.parked, '[' .. place .. '\0', '(' .. place .. '\1')
  local first = parked > 0 and redis.call('ZRANGEBYLEX', store.parked, '[' .. place .. '\0', '(' .. place .. '\1', 'LIMIT', 0, 1)[1]
  local job = first and examine.head(limits.id_of(first))
  return parked, parked > 0 and not (limiter.most and started + (job and meters.cost_of(job) or 1) > limiter.most)
end

-- The limit of a key of counters, and a place there; nil if there is none.
function examine.place(name, key)
  local number = tonumber(string.match(name, '^gauges:(%d+)$') or nil)
  if not number then return nil end
  local place = form.sortable(number) .. key
  local is_read, limiter = pcall(limits.at, place)
  if is_read and limiter then return limiter, place end
end

-- How a head contradicts itself, nil if it does not; whether that is only by its offer.
function examine.contradiction(job)
  -- The start of a submission in parts is no job; it exists until its jobs are released.
  if jobs.is_start(job.id) then return nil end
  local state, kind = job[STATE], job[TIMER]
  local is_over, has_all = OVER[state], gates.has_all(job)
  if state == STARTED then
    if kind ~= LEASE then return 'is STARTED without a lease' end
    if not job[TOKEN] or not job[WORKER] then return 'is STARTED without a token or a worker' end
    if not has_all then return 'is STARTED without all its gates' end
  elseif job[WORKER] and (state ~= FINISHED or job[HISTORY] or job[GONE]) then
    return 'has a worker and is not STARTED'
  elseif kind == LEASE and not (job[PRESENCE] and not is_over) then
    return 'has a lease and is not STARTED'
  end
  local has_place = state == QUEUED or state == STARTED or (state == FAILED and job[WALKS] and true or false)
  if (job[SEQ] > 0) ~= has_place then return has_place and 'has lost its place' or 'has a place and should have none' end
  local walks = form.is_counted(job[CLAIMS]) and 0 or #form.claims(job[CLAIMS])
  if has_place and walks ~= #(job[WALKS] or {}) then return 'has other gates than claims' end
  if job[OFFER] and not (state == QUEUED and has_all) then return 'is offered and cannot start', true end
  if state == QUEUED and has_all and not job[OFFER] and kind ~= DUE then return 'may start and is not offered', true end
  if state == SCHEDULED and kind ~= DUE and not job[PRESENCE] then return 'is SCHEDULED and never due' end
  if is_over and (kind ~= PRUNE or not job[ENDED]) then return 'is over and kept for ever' end
end
end
