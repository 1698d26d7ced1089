--[[ examine_keys: for the doctor, find entries of keys that no head requires. ]]
-- @include doctor/lib/examine_heads
do
local WEIGHT_MAX = 100 -- @const

-- The id in a member of each key.
local ID_OF = {
  paths = function(member) return record_index.id_of((select(2, paths.split(member)))) end,
  timers = function(member) return examine.id_of_tag(member, 2) end,
  ready = function(member)
    local _, from = string.find(member, '^%Z*%z%Z*%z')
    return examine.id_of_tag(member, from + (string.byte(member, from + 1) == 49 and 17 or 2))
  end,
  dead = function(member) return member end,
  keyed = function(member) return examine.id_of_tag(member, string.find(member, '\0', 1, true) + 1) end,
  -- The first character of a sortable number is its number of digits.
  parked = function(member)
    if string.find(member, '\0', 1, true) then return limits.id_of(member) end
    return examine.id_of_tag(member, 2 + string.byte(member) - 64)
  end,
  ['line:'] = function(member) return string.sub(member, 2) end,
  deferred = function(member) return member end,
  fallen = function(member) return examine.id_of_tag(member, string.find(member, '\0', 1, true) + 1) end,
  flow_states = function(member)
    local nul = string.find(member, '\0', 1, true)
    -- Behind an H stands what the parts of a submission have in common.
    if string.sub(member, nul + 1, nul + 1) == 'H' then nul = string.find(member, '\0', nul + 1, true) - 1 end
    return examine.id_of_tag(member, nul + 2)
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
  -- Entries left by a damaged head are examined once the head is gone.
  if not entries then return nil end
  if not entries[name] or not entries[name][member] then return 'stray', id end
  if base == 'parked' and form.is_place(job[OFFER]) then
    local is_read, limiter, _, number = pcall(limits.at, job[OFFER])
    -- One that costs more than a limit has is parked by its number alone.
    if is_read and not limiter then is_read, limiter = pcall(limits.apart_by, job) end
    if is_read and not limiter and not examine.is_left('u', -number) then return 'unparked', id end
  elseif base == 'parked' then
    local pause = job[OFFER]
    local is_paused = false
    for _, of in pairs(pauses.all()) do is_paused = is_paused or of.number == pause end
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
CHECK.specs = needs_head(function(job) return not job[SHORT_SPEC] end)
CHECK.asked = needs_head(function() return true end)
local check_needs = needs_head(function(job) return job[NEEDS] end)
-- Check that a job waits at each that a portion of its dependencies names.
local function check_waiting(id, job, needs)
  -- Portions are bound and released one after the other.
  if job[NEEDS] ~= HELD or (job[PORTIONS] and (job[STAGED] or examine.is_left('p', id))) then return end
  examine.units = examine.units - #needs
  for _, need in ipairs(needs) do
    if not redis.call('ZSCORE', store.waiting(need[1]), id) then examine.report('edge', 'waiting:' .. need[1], id, id, '') end
  end
end
-- Behind the id of a job with more than 1 000 dependencies stands which portion it is.
function CHECK.needs(name, base, field)
  local id, portion = string.match(field, '^([^\n]*)\n(%d+)$')
  portion = tonumber(portion or 0)
  local job = examine.head(id or field)
  if job and portion > 0 and portion > (job[PORTIONS] or 0) then return 'stray', field end
  local problem, about = check_needs(name, base, id or field)
  if job and not problem then check_waiting(id or field, job, edges.portion_of(job, portion)) end
  return problem, about
end
CHECK.results = needs_head(function(job) return job[RESULT] == 's' end)
CHECK.progress = needs_head(function(job) return job[REPORTED] end)
local check_log = needs_head(function(job) return job[LOGS] > 0 end)
local check_steps = needs_head(function(job) return job[STEPS] > 0 end)
local check_errors = needs_head(function(job) return job[ERRORS] > 0 end)

function CHECK.jobs(_, _, id)
  if examine.head(id) ~= false and not examine.entries(id) then return 'damaged', id end
end

-- Return whether an edge leads to a job that is over or lost, and no leftover will apply its policy.
local function is_unresolved(id, edge)
  local job = examine.head(id)
  if job == nil or not edge or (not job and jobs.is_signal(id)) then return false end
  if jobs.is_start(id) then return not job or (OVER[job[STATE]] and not examine.is_left('k', id) and not examine.is_left('x', id)) end
  if job and not OVER[job[STATE]] then return false end
  local action = job and not job[GONE] and edges.edge_action(edge, job[STATE])
  return action ~= TO_WAIT and not examine.is_left('r', id)
end

CHECK['waiting:'] = function(name, _, dependent_id)
  local _, id = examine.base(name)
  local dependent = examine.head(dependent_id)
  if dependent == nil then return nil end
  if not dependent then return 'lost', dependent_id end
  local edge = redis.call('HGET', store.blocked(dependent_id), id)
  local order = tonumber(redis.call('ZSCORE', store.waiting(id), dependent_id))
  local may_be_open = not OVER[dependent[STATE]] or examine.is_left('p', dependent_id)
  local is_edge = (edge and may_be_open) or examine.held(dependent, id)
  if is_edge == nil then return 'unsure', dependent_id end
  if not is_edge or order < dependent[NUMBER] or order > math.max(dependent[NUMBER], dependent[SINCE]) then
    return 'edge', dependent_id
  end
  if OVER[dependent[STATE]] and (dependent[STATE] ~= FAILED or dependent[GONE]) and not examine.is_left('p', dependent_id) then
    return 'unreleased', dependent_id
  end
  if not OVER[dependent[STATE]] and is_unresolved(id, edge) then
    if jobs.is_wait(id) and not examine.head(id) then return 'wait', dependent_id end
    return 'unresolved', id
  end
end

CHECK['blocked:'] = function(name, _, id)
  local _, dependent_id = examine.base(name)
  local dependent = examine.head(dependent_id)
  if dependent == nil then return nil end
  if not dependent then return 'lost', dependent_id end
  if examine.is_left('p', dependent_id) then return nil end
  if OVER[dependent[STATE]] or not redis.call('ZSCORE', store.waiting(id), dependent_id) then return 'edge', dependent_id end
end

function CHECK.shared(_, _, place, stored)
  if not string.find(stored, '^%d+ ') then return 'stray', place end
  if not redis.call('ZSCORE', store.shared_ends, place) then return 'ending', place end
  if string.byte(place) ~= 0 and not redis.call('ZSCORE', store.shared_names, place) then return 'nameless', place end
end

function CHECK.shared_names(_, _, place)
  if redis.call('HEXISTS', store.shared, place) == 0 then return 'stray', place end
end

function CHECK.shared_ends(_, _, place)
  if redis.call('HEXISTS', store.shared, place) == 0 then return 'stray', place end
end

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

function CHECK.index(_, _, field, packed)
  if string.sub(field, 1, 1) == ID_TERM then
    local ids = examine.ids(field, packed)
    if not ids then return 'stray', field end
    examine.units = examine.units - IDS_PER_FIELD
    for number, id in pairs(ids) do
      if not examine.is_of(number, id) then return 'strays', field end
    end
    return
  end
  local block_of_times = string.match(field, '^a%z(%d+)$')
  if block_of_times then
    if not record_bits.times(packed) or not record_index.has_records(tonumber(block_of_times)) then return 'stray', field end
    return
  end
  local numbers, term, block = examine.listed(field, packed)
  if not numbers or #numbers == 0 then return 'stray', field end
  if not redis.call('ZSCORE', store.blocks, term .. '\0' .. form.sortable(block)) then return 'block', field end
  examine.units = examine.units - #numbers
  for _, number in ipairs(numbers) do
    if not examine.has_term(number, term) then return 'strays', field end
  end
end

-- Facts that no record names. They are known by the index as by their blocks: what follows from damage to one of these is not that.
function CHECK.facts(_, _, id, text)
  if #id ~= FACTS_ID_SIZE or heads.id_of_common(text) ~= id then return 'stray', id end
  if redis.call('ZLEXCOUNT', store.blocks, '[f' .. id .. '\0', '(f' .. id .. '\1') == 0 then return 'unnamed', id end
end

function CHECK.blocks(_, _, member)
  local term, from = string.match(member, '^(%Z*)%z()')
  local is_read, block = pcall(form.split, member, from or 1)
  if not term or not is_read or not block then return 'stray', member end
  if member ~= term .. '\0' .. form.sortable(block) or redis.call('HEXISTS', store.index, record_index.field(term, block)) == 0 then
    return 'stray', member
  end
end

function CHECK.tallies(_, _, key)
  if not redis.call('ZSCORE', store.tallied, key) then return 'tallied', key end
end

function CHECK.tallied(_, _, key)
  if redis.call('HEXISTS', store.tallies, key) == 0 then return 'stray', key end
end

function CHECK.limits(_, _, field, packed)
  if not examine.limit(field, packed) then return 'limit', field end
end

CHECK['gauges:'] = function(name, _, key, packed)
  local limiter, place = examine.place(name, key)
  if not limiter then return 'stray', key end
  local is_read, counter = pcall(cmsgpack.unpack, packed)
  local started = is_read and type(counter) == 'table' and counter[1]
  if type(started) ~= 'number' or started % 1 ~= 0 then return 'gauge', key end
  -- How many run is a sum over all heads: it is compared once these are read.
  examine.tell_running(name, key, place, started)
  local parked, looks = examine.counter(limiter, place, started)
  -- A child where nothing runs or waits is counted as long as its meter counts something.
  local meter, is_idle = examine.meter(limiter, counter), started + parked == 0
  if counter[2] ~= parked or type(counter[3]) ~= 'number'
    or (meter == nil) ~= not (limits.is_each(limiter) and limiter.tokens) or (is_idle and (not meter or meter.spent == 0) and not counter[8])
    or (counter[4] and true or false) ~= (looks or is_idle or (counter[8] and true or false))
    or (tonumber(redis.call('ZSCORE', store.looks, place) or nil) or false) ~= counter[4] then
    return 'gauge', key
  end
end

function CHECK.looks(_, _, place)
  local is_read, limiter, key, number = pcall(limits.at, place)
  local packed = is_read and limiter and redis.call('HGET', store.gauges(number), key)
  if not packed then return 'stray', place end
  local is_counter, counter = pcall(cmsgpack.unpack, packed)
  -- A wrong counter is a finding of its own.
  if is_counter and type(counter) == 'table' and counter[4] == false then return 'stray', place end
end

function CHECK.crowds(_, _, key)
  local gate = examine.gate(redis.call('HGET', store.gates, key))
  if not gate or gate_format.crowd(gate[WAITING]) == 0 then return 'stray', key end
end

function CHECK.gates(_, _, key, packed)
  local gate = examine.gate(packed)
  if not gate or math.max(unpack(gate, 1, TO_ADVANCE)) == 0 then return 'stray', key end
  if redis.call('ZCARD', store.line(key)) ~= gate[WAITING] then return 'line', key end
  if (tonumber(redis.call('ZSCORE', store.crowds, key) or nil) or 0) ~= gate_format.crowd(gate[WAITING]) then return 'crowd', key end
  if gate[TO_ADVANCE] > 0 and not examine.is_left('g', key, gate[TO_ADVANCE]) then return 'stalled', key end
  local member = redis.call('ZRANGE', store.line(key), 0, 0)[1]
  if gate[TO_ADVANCE] > 0 or not member then return nil end
  local job, index = examine.head(string.sub(member, 2)), (string.byte(member) or 0) - BEFORE_CLAIM
  local claim = job and form.claims(job[CLAIMS])[index]
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
  local pool = string.match(name, '^[^\1]*')
  if pool == name then return nil end
  for _, queue in ipairs(examine.refused(pool)) do
    if queue == name then return nil end
  end
  return 'refused', pool
end

function CHECK.refused(_, _, pool)
  local names = examine.refused(pool)
  for at, name in ipairs(names) do
    if (names[at - 1] and not form.less(names[at - 1], name)) or redis.call('HEXISTS', store.pools, name) == 0 then return 'refused', pool end
  end
  if #names == 0 then return 'refused', pool end
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

function CHECK.pauses(_, base, name, stored)
  local pause = pauses.read(stored)
  if not pause or (base == 'selections' and not string.find(name, pauses.SELECTION)) then return 'stray', name end
  if pause.number > S[PAUSE] then return 'behind', 'pause' end
  local timer_ms = tonumber(redis.call('ZSCORE', store.timers, pauses.timer_member(name, pause.number)) or nil) or false
  if timer_ms ~= pause.until_ms then return 'endless', name end
end

CHECK.selections = CHECK.pauses

-- Ends of pauses stand among the timers of jobs.
function CHECK.timers(name, base, member)
  if string.sub(member, 1, 1) ~= RESUME then return check_member(name, base, member) end
  local is_read, number, of = pcall(form.split, member, 2)
  local stored = is_read and number and redis.call('HGET', pauses.key_of(of), of)
  local pause = stored and pauses.read(stored)
  if not pause or pause.number ~= number or not pause.until_ms then return 'stray', member end
end

function CHECK.left(_, _, packed)
  local is_read, item = pcall(cmsgpack.unpack, packed)
  if not is_read or type(item) ~= 'table' or not string.find('gcurkxpvfd', tostring(item[1]), 1, true) then return 'stray', '' end
end

-- The problem of an item of a key, and its subject; nil if it has none.
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
  if base == 'steps:' then return check_steps(nil, nil, rest) ~= nil end
  if base == 'gauges:' then
    local stored = redis.call('HGETALL', store.limits)
    for at = 2, #stored, 2 do
      local limit = examine.limit(stored[at - 1], stored[at])
      if not limit or examine.int(limit[1]) == rest then return false end
    end
    return true
  end
  if base == 'wake:pool:' then return redis.call('HEXISTS', store.pools, rest) == 0 end
  if base == 'wake:release:' then return redis.call('HEXISTS', store.refused, string.match(rest, '^%Z*')) == 0 end
  if base == 'events' then return S[FOLLOWED] == 0 end
  -- A marker goes when its user has no ready jobs, or with the time a worker asked for the user.
  if base == 'wake:user:' then
    return redis.call('HEXISTS', store.users, rest) == 0 or not redis.call('ZSCORE', store.seen, rest)
  end
  if base == 'wake:session:' then return not redis.call('ZSCORE', store.sessions, rest) end
  return false
end
end
