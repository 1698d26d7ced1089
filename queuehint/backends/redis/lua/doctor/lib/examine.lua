--[[ examine: what has to be there by the heads, and what is there but has no reason to be; for the doctor.
  Indexes are functions of the heads: what lib/structures/indexes would write for a head if it were new has to be there. So this
  knows no index, and whatever a step did is compared with what one step from nothing does. Each answer is about one
  moment, whatever else the server does between the scripts. ]]
local examine = {}

do
local NAME_AT = #store.meta - 3
-- Counters of the state that say how many jobs there are of a kind.
local COUNTED = {scheduled = COUNT_OF.S, deferred = COUNT_OF.D, queued = COUNT_OF.Q, started = COUNT_OF.R,
  finished = COUNT_OF.F, failed = COUNT_OF.X, canceled = COUNT_OF.C, holding = HOLDING, strangers = STRANGERS_NOW,
  backing_off = BACKING_OFF_NOW, open_edges = OPEN_EDGES, limited = LIMITED, staged = HIDDEN,
  level_1 = LEVELS + 1, level_2 = LEVELS + 2, level_3 = LEVELS + 3, level_4 = LEVELS + 4, level_5 = LEVELS + 5}
-- Others that a repair may set or raise.
local OTHERS = {numbers = NUMBERS, places = PLACES, turn = TURN, pause = PAUSE, marks = MARKS, drawn = DRAWN, epoch = EPOCH,
  paused = PAUSED, closed = CLOSED_PATHS, enqueued = ENQUEUED_IN_ALL, pruned = PRUNED_IN_ALL, shared_values = SHARED_VALUES,
  limits = LIMITS, watched = WATCHED, schedules = SCHEDULES, schedule_versions = SCHEDULE_VERSIONS, next_schedule = NEXT_SCHEDULE, weighted = WEIGHTED, users_seen = USERS_SEEN, dropped = DROPPED_IN_ALL}
local LEFT_READ_MAX, WEIGHT_MAX = 10000, 100 -- @const

examine.counted, examine.others = COUNTED, OTHERS

-- The name of a key in its namespace.
function examine.name(redis_key) return string.sub(redis_key, NAME_AT) end

-- What a name begins with, up to the last colon of a prefix, and the rest; a fixed key has no rest.
function examine.base(name)
  local from, to = string.find(name, '^wake:%l+:')
  if not from then
    from, to = string.find(name, '^%l+:')
    if name == 'wake:timer' then from = nil end
  end
  if not from then return name, '' end
  return string.sub(name, 1, to), string.sub(name, to + 1)
end

function examine.int(number) return string.format('%.0f', number) end

local heads = {}

-- A job's head; false if there is none, nil if it cannot be read.
function examine.head(id)
  local known = heads[id]
  if not known then
    local is_read, job = pcall(jobs.of, id)
    if is_read and job then
      is_read = COUNT_OF[job[STATE]] and type(job[NUMBER]) == 'number' and type(job[SEQ]) == 'number'
        and type(job[CLAIMS]) == 'string'
    end
    known = {}
    if is_read then known.job = job end
    heads[id] = known
  end
  return known.job
end

local said = {}

-- What would be written for a job if it were new: {[name] = {[member] = score}}, and what would be counted.
-- nil if the head makes no sense to lib/structures/indexes.
function examine.entries(id)
  if said[id] then return said[id].entries, said[id].counts end
  local job = examine.head(id)
  if not job then return nil end
  -- Who packs a head takes it apart.
  local copy = setmetatable({unpack(job)}, getmetatable(job))
  if job[WALKS] then copy[WALKS] = {unpack(job[WALKS])} end
  copy.id = id
  local state, noted, counts = {unpack(S)}, {}, {}
  for _, at in pairs(COUNTED) do S[at] = 0 end
  stand_in.noted = noted
  local is_done = pcall(indexes.write, id, copy)
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

local left_kinds

-- Whether a piece of work is among the leftovers.
function examine.is_left(kind, what, mark)
  if not left_kinds then
    left_kinds = {}
    for _, packed in ipairs(redis.call('LRANGE', store.left, 0, LEFT_READ_MAX - 1)) do
      local is_read, item = pcall(cmsgpack.unpack, packed)
      if is_read and type(item) == 'table' then
        -- A sweep behind a dead job is known by that job.
        if item[1] == 'c' then left_kinds['c' .. tostring(item[5]) .. '\n'] = true
        else left_kinds[tostring(item[1]) .. tostring(item[2]) .. '\n' .. tostring(item[1] == 'g' and item[3] or '')] = true end
      end
    end
    left_kinds.unread = redis.call('LLEN', store.left) > LEFT_READ_MAX
  end
  return left_kinds.unread or left_kinds[kind .. tostring(what) .. '\n' .. tostring(mark or '')] or false
end

-- How many ready jobs a user of a pool has, and a pool; how many users have turns.
function examine.ready_of_user(key) return redis.call('ZLEXCOUNT', store.ready, '[' .. key .. '\0', '(' .. key .. '\1') end
function examine.ready_of_pool(name) return redis.call('ZLEXCOUNT', store.ready, '[' .. name .. '\0', '(' .. name .. '\1') end
function examine.users_of_pool(name) return redis.call('ZLEXCOUNT', store.turns, '[' .. name .. '\0', '(' .. name .. '\1') end

function examine.pair(packed)
  local is_read, pair = pcall(cmsgpack.unpack, packed or '')
  if is_read and type(pair) == 'table' and type(pair[1]) == 'number' and type(pair[2]) == 'number' then return pair[1], pair[2] end
  return 0, 0
end

function examine.gate(packed)
  local is_read, gate = pcall(cmsgpack.unpack, packed or '')
  local is_whole = is_read and type(gate) == 'table'
  for at = 1, TO_ADVANCE do is_whole = is_whole and type(gate[at]) == 'number' end
  return is_whole and gate or nil
end

-- A turn as a member of the turns.
function examine.turn(key, turn)
  local pool, user = string.match(key, '^(%Z*)%z(.*)$')
  return pool and pool .. '\0' .. form.sortable(turn) .. user
end

-- What a head says of its logs, as far as they are kept.
function examine.logs_kept(job) return math.min(job[LOGS], 1000) end

local function tag_id(member, from)
  local _, id = form.split(member, from)
  return id
end

-- Where in a member the id is.
local ID_OF = {
  paths = function(member) return select(3, paths.split(member)) end,
  timers = function(member) return tag_id(member, 2) end,
  ready = function(member)
    local _, from = string.find(member, '^%Z*%z%Z*%z')
    return tag_id(member, from + (string.byte(member, from + 1) == 49 and 17 or 2))
  end,
  dead = function(member) return member end,
  keyed = function(member) return tag_id(member, string.find(member, '\0', 1, true) + 1) end,
  -- The number of its digits says where a sortable number ends.
  parked = function(member)
    if string.find(member, '\0', 1, true) then return limits.id_of(member) end
    return tag_id(member, 2 + string.byte(member) - 64)
  end,
  ['line:'] = function(member) return string.sub(member, 3) end,
  deferred = function(member) return member end,
  fallen = function(member) return tag_id(member, string.find(member, '\0', 1, true) + 1) end,
  flow_states = function(member)
    local nul = string.find(member, '\0', 1, true)
    -- Behind an H stands what the parts of a submission have in common.
    if string.sub(member, nul + 1, nul + 1) == 'H' then nul = string.find(member, '\0', nul + 1, true) - 1 end
    return tag_id(member, nul + 2)
  end,
}
ID_OF.holds, ID_OF.past, ID_OF.leases, ID_OF.prunes, ID_OF.flow_jobs = ID_OF.paths, ID_OF.paths, ID_OF.timers, ID_OF.timers, ID_OF.fallen

local CHECK = {}

local function check_member(name, base, member)
  local is_read, id = pcall(ID_OF[base], member)
  if not is_read or not id or id == '' then return 'stray' end
  local job = examine.head(id)
  if job == false then return 'lost', id end
  local entries = examine.entries(id)
  -- What a damaged head has left is looked at once that is gone.
  if not entries then return nil end
  if not entries[name] or not entries[name][member] then return 'stray', id end
  if base == 'parked' and form.is_place(job[OFFER]) then
    local is_read, meter, _, number = pcall(limits.at, job[OFFER])
    if is_read and not meter and not examine.is_left('u', -number) then return 'unparked', id end
  elseif base == 'parked' then
    local pause = job[OFFER]
    local is_paused = false
    for _, stored in ipairs(redis.call('HVALS', store.pauses)) do is_paused = is_paused or tonumber(stored) == pause end
    if not is_paused and not examine.is_left('u', pause) then return 'unparked', id end
  end
end
for base in pairs(ID_OF) do CHECK[base] = check_member end

local function needs_head(has)
  return function(_, _, id)
    local job = examine.head(id)
    if job == false then return 'lost', id end
    if job and not has(job) then return 'stray', id end
  end
end
CHECK.specs = needs_head(function() return true end)
CHECK.asked = CHECK.specs
CHECK.needs = needs_head(function(job) return job[NEEDS] end)
CHECK.results = needs_head(function(job) return job[RESULT] == 's' end)
CHECK.progress = needs_head(function(job) return job[REPORTED] end)
local check_log = needs_head(function(job) return job[LOGS] > 0 end)
local check_errors = needs_head(function(job) return job[ERRORS] > 0 end)

function CHECK.jobs(_, _, id)
  if examine.head(id) ~= false and not examine.entries(id) then return 'damaged', id end
end

-- The fates of an edge to a job that another is told to depend on and may still need; nil if it is not.
function examine.held(job, dependency_id)
  if job[NEEDS] ~= HELD then return nil end
  for _, need in ipairs(edges.needs_of(job)) do
    if need[1] == dependency_id then return need[2] end
  end
end

-- Whether an edge leads to a job that is over or lost, and nobody will do with it what its fates say.
local function is_unresolved(id, fates)
  local job = examine.head(id)
  if job == nil or not fates then return false end
  if jobs.is_start(id) then return not job or (OVER[job[STATE]] and not examine.is_left('k', id) and not examine.is_left('x', id)) end
  if job and not OVER[job[STATE]] then return false end
  local fate = job and not job[GONE] and edges.fate(fates, job[STATE])
  return fate ~= TO_WAIT and not examine.is_left('r', id)
end

CHECK['waiting:'] = function(name, _, dependent_id)
  local _, id = examine.base(name)
  local dependent = examine.head(dependent_id)
  if dependent == nil then return nil end
  if not dependent then return 'lost', dependent_id end
  local fates = redis.call('HGET', store.blocked(dependent_id), id)
  local order = tonumber(redis.call('ZSCORE', store.waiting(id), dependent_id))
  local is_edge = (fates and not OVER[dependent[STATE]]) or examine.held(dependent, id) or examine.is_left('p', dependent_id)
  if not is_edge or order < dependent[NUMBER] or order > math.max(dependent[NUMBER], dependent[SINCE]) then
    return 'edge', dependent_id
  end
  if OVER[dependent[STATE]] and (dependent[STATE] ~= FAILED or dependent[GONE]) and not examine.is_left('p', dependent_id) then
    return 'unreleased', dependent_id
  end
  if not OVER[dependent[STATE]] and is_unresolved(id, fates) then return 'unresolved', id end
end

CHECK['blocked:'] = function(name, _, id)
  local _, dependent_id = examine.base(name)
  local dependent = examine.head(dependent_id)
  if dependent == nil or examine.is_left('p', dependent_id) then return nil end
  if not dependent then return 'lost', dependent_id end
  if OVER[dependent[STATE]] or not redis.call('ZSCORE', store.waiting(id), dependent_id) then return 'edge', dependent_id end
end

function CHECK.shared(_, _, place, stored)
  if not string.find(stored, '^%d+ ') then return 'stray', place end
  if not redis.call('ZSCORE', store.shared_ends, place) then return 'ending', place end
end

function CHECK.shared_ends(_, _, place)
  if redis.call('HEXISTS', store.shared, place) == 0 then return 'stray', place end
end

-- A schedule as it is packed; nil if it cannot be read.
function examine.schedule(packed)
  local is_read, schedule = pcall(cmsgpack.unpack, packed or '')
  if not is_read or type(schedule) ~= 'table' or type(schedule[VERSION_OF]) ~= 'number' then return nil end
  for at = ASKED_HEAD, RECURRENCE do
    if type(schedule[at]) ~= 'string' then return nil end
  end
  return schedule
end

-- When a schedule has to come to be due; false for never.
function examine.due_of(schedule) return not schedule[IS_PAUSED] and schedule[NEXT_DUE] end

function CHECK.schedules(_, _, name, packed)
  local schedule = examine.schedule(packed)
  if not schedule then return 'schedule', name end
  local due_ms = tonumber(redis.call('ZSCORE', store.schedule_dues, name) or nil) or false
  if due_ms ~= examine.due_of(schedule) or not redis.call('ZSCORE', store.schedule_names, name) then return 'unlisted', name end
end

function CHECK.schedule_names(_, _, name)
  if redis.call('HEXISTS', store.schedules, name) == 0 then return 'stray', name end
end
CHECK.schedule_dues = CHECK.schedule_names
-- The numbers whose bits a field of INDEX holds, with its term and block; nil if it makes no sense.
function examine.listed(field, packed)
  local term, block = string.match(field, '^([asuvtp]%Z*)%z(%d+)$')
  block = tonumber(block)
  local bits = packed
  if term == 'a' then bits = select(3, record_index.split(packed)) end
  if not block or not bits or #bits < 5 or #bits % 4 ~= 1 or string.byte(bits) * 4 + #bits > 129 then return nil end
  local numbers, from = {}, block * PER_BLOCK + string.byte(bits) * 32 - 16
  for at = 2, #bits do
    local byte = string.byte(bits, at)
    for offset = 0, byte > 0 and 7 or -1 do
      if bit.band(byte, 2 ^ (7 - offset)) > 0 then numbers[#numbers + 1] = from + at * 8 + offset end
    end
  end
  return numbers, term, block
end

-- Whether the record of a number is there and has a term.
function examine.has_term(number, term)
  local id = redis.call('HGET', store.numbers, examine.int(number))
  local job = id and examine.head(id)
  if job == nil then return true end
  if not record_index.lists(job) or job[NUMBER] ~= number then return false end
  for _, each in ipairs(record_index.terms(job)) do
    if each == term then return true end
  end
  return false
end

function CHECK.index(_, _, field, packed)
  local numbers, term, block = examine.listed(field, packed)
  if not numbers or #numbers == 0 then return 'stray', field end
  if not redis.call('ZSCORE', store.blocks, term .. '\0' .. form.sortable(block)) then return 'block', field end
  for _, number in ipairs(numbers) do
    if not examine.has_term(number, term) then return 'strays', field end
  end
end

function CHECK.blocks(_, _, member)
  local term, from = string.match(member, '^(%Z*)%z()')
  local is_read, block = pcall(form.split, member, from or 1)
  if not term or not is_read or not block then return 'stray', member end
  if member ~= term .. '\0' .. form.sortable(block) or redis.call('HEXISTS', store.index, record_index.field(term, block)) == 0 then
    return 'stray', member
  end
end

function CHECK.numbers(_, _, number, id)
  local job = examine.head(id)
  if job == false then return 'lost', id end
  if job and not (record_index.lists(job) and examine.int(job[NUMBER]) == number) then return 'stray', id end
end

function CHECK.tallies(_, _, key)
  if not redis.call('ZSCORE', store.tallied, key) then return 'tallied', key end
end

function CHECK.tallied(_, _, key)
  if redis.call('HEXISTS', store.tallies, key) == 0 then return 'stray', key end
end

-- Where a record is not found by all it is; nil if it is.
local fields_read = {}

function examine.unlisted(id, job)
  if redis.call('HGET', store.numbers, examine.int(job[NUMBER])) ~= id then return 'numbers' end
  for _, term in ipairs(record_index.terms(job)) do
    local block = math.floor(job[NUMBER] / PER_BLOCK)
    local field = record_index.field(term, block)
    local found = fields_read[field]
    if not found then
      local packed = redis.call('HGET', store.index, field)
      found = {}
      for _, number in ipairs(packed and examine.listed(field, packed) or {}) do found[number] = true end
      if term == 'a' then found.first_ms, found.last_ms = record_index.split(packed) end
      fields_read[field] = found
    end
    local is_timed = term ~= 'a' or (found.first_ms and found.first_ms <= job[ENQUEUED] and job[ENQUEUED] <= found.last_ms)
    if not found[job[NUMBER]] or not is_timed then return 'index' end
  end
end

-- A limit as it is packed; nil if it cannot be read.
function examine.limit(packed)
  local is_read, limit = pcall(cmsgpack.unpack, packed or '')
  if not is_read or type(limit) ~= 'table' or type(limit[1]) ~= 'number' or #limit ~= 7 then return nil end
  for at = 2, 7 do
    if type(limit[at]) ~= 'number' and limit[at] ~= false then return nil end
  end
  return limit
end

-- How many limits hold back, and how many bound what is unfinished.
function examine.count_limits()
  local holding, watched = 0, 0
  local stored = redis.call('HGETALL', store.limits)
  for at = 2, #stored, 2 do
    local limit = examine.limit(stored[at])
    if limit and limit[1] > 0 then holding = holding + 1 end
    if limit and limit[5] then watched = watched + 1 end
  end
  return holding, watched
end

local started_at

-- What has to be counted at a place, by the heads: how many jobs run, how many are put aside, whether to look at it again.
function examine.gauge(meter, place)
  if not started_at then
    started_at = {}
    for _, member in ipairs(redis.call('ZRANGE', store.leases, 0, -1)) do
      local job = examine.head(tag_id(member, 2))
      local is_read, places = pcall(function() return job and job[STATE] == STARTED and limits.places(job) or {} end)
      for _, at in ipairs(is_read and places or {}) do started_at[at.place] = (started_at[at.place] or 0) + 1 end
    end
  end
  local started = started_at[place] or 0
  local parked = redis.call('ZLEXCOUNT', store.parked, '[' .. place .. '\0', '(' .. place .. '\1')
  return started, parked, parked > 0 and not (meter.most and started >= meter.most)
end

-- The limit of a key of gauges, and a place there; nil if there is none.
function examine.place(name, key)
  local number = tonumber(string.match(name, '^gauges:(%d+)$') or nil)
  if not number then return nil end
  local place = form.sortable(number) .. key
  local is_read, meter = pcall(limits.at, place)
  if is_read and meter then return meter, place end
end

function CHECK.limits(_, _, field, packed)
  if not examine.limit(packed) then return 'limit', field end
end

CHECK['gauges:'] = function(name, _, key, packed)
  local meter, place = examine.place(name, key)
  if not meter then return 'stray', key end
  local is_read, gauge = pcall(cmsgpack.unpack, packed)
  local started, parked, looks = examine.gauge(meter, place)
  if not is_read or type(gauge) ~= 'table' or gauge[1] ~= started or gauge[2] ~= parked or started + parked == 0
    or type(gauge[3]) ~= 'number' or (gauge[4] and true or false) ~= looks
    or (tonumber(redis.call('ZSCORE', store.looks, place) or nil) or false) ~= gauge[4] then
    return 'gauge', key
  end
end

function CHECK.looks(_, _, place)
  local is_read, meter, key, number = pcall(limits.at, place)
  local packed = is_read and meter and redis.call('HGET', store.gauges(number), key)
  if not packed then return 'stray', place end
  local is_gauge, gauge = pcall(cmsgpack.unpack, packed)
  -- What is wrong with a gauge that says otherwise is told of that.
  if is_gauge and type(gauge) == 'table' and gauge[4] == false then return 'stray', place end
end

function CHECK.gates(_, _, key, packed)
  local gate = examine.gate(packed)
  if not gate or math.max(unpack(gate, 1, TO_ADVANCE)) == 0 then return 'stray', key end
  if redis.call('ZCARD', store.line(key)) ~= gate[WAITING] then return 'line', key end
  if gate[TO_ADVANCE] > 0 and not examine.is_left('g', key, gate[TO_ADVANCE]) then return 'stalled', key end
  local member = redis.call('ZRANGE', store.line(key), 0, 0)[1]
  if gate[TO_ADVANCE] > 0 or not member then return nil end
  local job, index = examine.head(string.sub(member, 3)), tonumber(string.sub(member, 1, 2))
  local claim = job and index and form.claims(job[CLAIMS])[index]
  local depth = claim and job[WALKS] and job[WALKS][index]
  if depth and depth < #claim.keys and gates.fits(gate, gates.mode_at(claim, depth)) then return 'stalled', key end
end

function CHECK.users(_, _, key, packed)
  local size, turn = examine.pair(packed)
  if size == 0 or size ~= examine.ready_of_user(key) then return 'user', key end
  local member = examine.turn(key, turn)
  if not member or not redis.call('ZSCORE', store.turns, member) then return 'user', key end
end

function CHECK.turns(_, _, member)
  local pool, from = string.match(member, '^(%Z*)%z()')
  if not pool then return 'stray', member end
  local is_read, turn, user = pcall(form.split, member, from)
  if not is_read or not turn then return 'stray', member end
  local key = pool .. '\0' .. user
  local _, stored = examine.pair(redis.call('HGET', store.users, key))
  if stored ~= turn then return 'stray', member end
end

function CHECK.pools(_, _, name, packed)
  local size, users = examine.pair(packed)
  if size == 0 or size ~= examine.ready_of_pool(name) or users ~= examine.users_of_pool(name) then return 'pool', name end
end

function CHECK.untold(_, _, worker, packed)
  local is_read, ids = pcall(cmsgpack.unpack, packed)
  if not is_read or type(ids) ~= 'table' or #ids == 0 then return 'stray', worker end
  for _, id in ipairs(ids) do
    local job = examine.head(id)
    if job ~= nil and not (job and job[STATE] == STARTED and job[WORKER] == worker and job[CANCEL]) then return 'untold', id end
  end
end

function CHECK.receipts(_, _, session)
  if not redis.call('ZSCORE', store.sessions, session) then return 'session', session end
end

function CHECK.weights(_, _, _, stored)
  local weight = tonumber(stored)
  if not weight or weight < 2 or weight > WEIGHT_MAX or weight % 1 ~= 0 then return 'stray', '' end
end

function CHECK.pauses(_, _, path, stored)
  local pause = tonumber(stored)
  if not pause or pause > S[PAUSE] then return 'behind', 'pause' end
end

function CHECK.left(_, _, packed)
  local is_read, item = pcall(cmsgpack.unpack, packed)
  if not is_read or type(item) ~= 'table' or not string.find('gcurkxpvf', tostring(item[1]), 1, true) then return 'stray', '' end
end

-- What is wrong with an item of a key, and whom it is about; nil if nothing is.
function examine.check(name, item, value)
  local base = examine.base(name)
  local check = CHECK[base]
  if check then return check(name, base, item, value) end
end

-- Whether a key has no reason to be there.
function examine.is_stray_key(name)
  local base, rest = examine.base(name)
  if base == 'log:' then return check_log(nil, nil, rest) ~= nil end
  if base == 'errors:' then return check_errors(nil, nil, rest) ~= nil end
  if base == 'gauges:' then
    local stored = redis.call('HGETALL', store.limits)
    for at = 2, #stored, 2 do
      local limit = examine.limit(stored[at])
      if not limit or examine.int(limit[1]) == rest then return false end
    end
    return true
  end
  if base == 'wake:pool:' then return redis.call('HEXISTS', store.pools, rest) == 0 end
  if base == 'events' then return S[FOLLOWED] == 0 end
  if base == 'wake:user:' then return redis.call('HEXISTS', store.users, rest) == 0 end
  if base == 'wake:session:' then return not redis.call('ZSCORE', store.sessions, rest) end
  return false
end

-- How a head contradicts itself; nil if it does not.
function examine.contradiction(job)
  -- What a submission in parts waits for is no job, and there until its parts are let go.
  if jobs.is_start(job.id) then return nil end
  local state, kind = job[STATE], job[TIMER]
  local is_over, has_all = OVER[state], gates.has_all(job)
  if state == STARTED then
    if kind ~= LEASE then return 'is STARTED without a lease' end
    if not job[TOKEN] or not job[WORKER] then return 'is STARTED without a token or a worker' end
    if not has_all then return 'is STARTED without all its gates' end
  elseif job[WORKER] then
    return 'has a worker and is not STARTED'
  elseif kind == LEASE and not (job[PRESENCE] and not is_over) then
    return 'has a lease and is not STARTED'
  end
  local has_place = state == QUEUED or state == STARTED or (state == FAILED and job[WALKS] and true or false)
  if (job[SEQ] > 0) ~= has_place then return has_place and 'has lost its place' or 'has a place and should have none' end
  if has_place and #form.claims(job[CLAIMS]) ~= #(job[WALKS] or {}) then return 'has other gates than claims' end
  if job[OFFER] and not (state == QUEUED and has_all) then return 'is offered and cannot start' end
  if state == QUEUED and has_all and not job[OFFER] and kind ~= DUE then return 'may start and is not offered' end
  if state == SCHEDULED and kind ~= DUE and not job[PRESENCE] then return 'is SCHEDULED and never due' end
  if is_over and (kind ~= PRUNE or not job[ENDED]) then return 'is over and kept for ever' end
end
end
