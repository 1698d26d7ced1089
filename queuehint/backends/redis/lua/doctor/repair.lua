#!lua flags=allow-oom
--[[ repair: for the doctor, repair its findings, provided that nothing has changed since they were made.
  ARGV[9] packed    str  the state as it was when the doctor looked, "" if there was none
  ARGV[10..]        three for each repair: kind, name, item; see REPAIR
  Returns DONE and the state as it is now, or CHANGED, and then nothing was done.
  A repair computes what it writes from the heads, not from the finding; only counts over many heads (place, gate,
  counter) are computed by the doctor, and replace nothing but the values that it has read. ]]
-- @include doctor/lib/rules
-- @include doctor/lib/examine_keys
args.count(9, 3)
local LEASE_LOST_MS = 30000 -- @const
if stand_in.packed ~= ARGV[9] then return {'CHANGED', ''} end

-- Writes that follow from no changed head: they come last, after everything that could fail.
local writes = {}
local function later(write, name, ...) writes[#writes + 1] = {write, store[name], ...} end
local WRITE = {
  add = function(key, member, score) redis.call('ZADD', key, score, member) end,
  set = function(key, field, value) redis.call('HSET', key, field, value) end,
  unlink = function(key) redis.call('UNLINK', key) end,
  persist = function(key) redis.call('PERSIST', key) end,
  hash = function(key, item) redis.call('HDEL', key, item) end,
  zset = function(key, item) redis.call('ZREM', key, item) end,
  list = function(key, item) redis.call('LREM', key, 1, item) end,
}
local TYPE_OF = {['blocked:'] = 'hash', closed = 'hash', left = 'list', jobs = 'hash', specs = 'hash', asked = 'hash', results = 'hash',
  needs = 'hash', shared = 'hash', schedules = 'hash', weights = 'hash', limits = 'hash', ['gauges:'] = 'hash',
  index = 'hash', tallies = 'hash', facts = 'hash',
  progress = 'hash', gates = 'hash', pools = 'hash', users = 'hash', pauses = 'hash', selections = 'hash', receipts = 'hash', untold = 'hash', refused = 'hash'}

local turns, joined = {}, {}

local function value_of(name, item)
  if TYPE_OF[examine.base(name)] == 'hash' then return redis.call('HGET', store[name], item) or '' end
  return ''
end

local REPAIR = {}

-- A key of ours that was given a time to live.
function REPAIR.persist(name) later('persist', name) end

-- A key that has no reason to be there.
function REPAIR.key(name)
  if examine.is_stray_key(name) then later('unlink', name) end
end

-- A retention that cannot be read, and is still what it was.
function REPAIR.retention(text)
  if redis.call('HGET', store.meta, 'retention') == text then later('hash', 'meta', 'retention') end
end

-- An entry that has no reason to be there: what it is about is gone, or says otherwise.
function REPAIR.drop(name, item)
  local base = examine.base(name)
  local problem = examine.check(name, item, value_of(name, item))
  if problem ~= 'lost' and problem ~= 'stray' and problem ~= 'damaged' and problem ~= 'schedule' and problem ~= 'limit' then return end
  later(TYPE_OF[base] or 'zset', name, item)
  -- It was counted in.
  if base == 'weights' then S[WEIGHTED] = S[WEIGHTED] - 1 end
end

-- Add missing entries that a head requires.
function REPAIR.entry(_, id)
  for name, members in pairs(examine.entries(id) or {}) do
    for member, score in pairs(members) do
      if tonumber(redis.call('ZSCORE', store[name], member) or nil) ~= score then later('add', name, member, score) end
    end
  end
end

examine.looks_through = true
-- An edge of which one end is missing. Whether it is one is told by what the job was told to depend on, which it may still
-- need, by its other end, and by the head, which counts the open ones.
function REPAIR.edge(id, dependency_id)
  local job = examine.head(id)
  if job == nil then return end
  local blocked, waiting = 'blocked:' .. id, 'waiting:' .. dependency_id
  local edge = redis.call('HGET', store[blocked], dependency_id)
  local waits = redis.call('ZSCORE', store[waiting], id)
  local held = job and examine.held(job, dependency_id)
  local is_open = false
  if job and not OVER[job[STATE]] then
    local missing = job[BLOCKED] - redis.call('HLEN', store[blocked]) - (joined[id] or 0)
    if edge then
      is_open = waits or held or missing >= 0
      if not is_open then joined[id] = (joined[id] or 0) - 1 end
    elseif waits and not held and missing > 0 then
      is_open, joined[id] = true, (joined[id] or 0) + 1
      later('set', blocked, dependency_id, AFTER)
    end
  end
  if is_open or held then
    later('add', waiting, id, job[SINCE] > 0 and job[SINCE] or job[NUMBER])
  else
    later('zset', waiting, id)
  end
  if edge and not is_open then later('hash', blocked, dependency_id) end
end

-- A shared value that would stay for ever.
function REPAIR.ending(_, place)
  local until_ms = string.match(redis.call('HGET', store.shared, place) or '', '^(%d+) ')
  if until_ms then later('add', 'shared_ends', place, until_ms) end
end

-- A shared value that is not listed: an older release has written it.
function REPAIR.nameless(_, place) later('add', 'shared_names', place, 0) end

-- A schedule that is not where its name and its due time belong.
function REPAIR.unlisted(_, name)
  local schedule = examine.schedule(redis.call('HGET', store.schedules, name))
  if not schedule then return end
  later('add', 'schedule_names', name, 0)
  local due_ms = examine.due_of(schedule)
  if due_ms then later('add', 'schedule_dues', name, due_ms) else later('zset', 'schedule_dues', name) end
end

-- A pause that would not end when it should, or ends when it should not.
function REPAIR.endless(_, name)
  local pause = pauses.of(name)
  if not pause then return end
  local member = pauses.timer_member(name, pause.number)
  if pause.until_ms then later('add', 'timers', member, pause.until_ms) else later('zset', 'timers', member) end
end

-- A job that is missing from the index of records.
function REPAIR.bit(_, id)
  local job = examine.head(id)
  if not job then return end
  if record_index.has_id(job) then record_index.put_id(job[NUMBER], id) end
  if record_index.lists(job) then record_index.list(job) end
end

-- Bits of records that are not there or have not the term; ids of others than they lead to.
function REPAIR.strays(_, field)
  local packed = redis.call('HGET', store.index, field) or ''
  for number, id in pairs(examine.ids(field, packed) or {}) do
    if not examine.is_of(number, id) then record_index.put_id(number, false) end
  end
  local numbers, term = examine.listed(field, packed)
  for _, number in ipairs(numbers or {}) do
    if not examine.has_term(number, term) then record_index.change(term, number, false) end
  end
end

-- Bits that no walk comes to.
function REPAIR.block(_, field)
  local _, term, block = examine.listed(field, redis.call('HGET', store.index, field) or '')
  if term then later('add', 'blocks', term .. '\0' .. form.sortable(block), 0) end
end

-- Facts that no record names, as the index is once it is whole.
function REPAIR.unnamed(_, id)
  if examine.check('facts', id, redis.call('HGET', store.facts, id) or '') == 'unnamed' then later('hash', 'facts', id) end
end

-- How many records a service and a user have: what was seen, a line break, what it has to be.
function REPAIR.tally(key, counts)
  local was, now = string.match(counts, '^([^\n]*)\n([^\n]*)$')
  if (redis.call('HGET', store.tallies, key) or '') ~= was then return end
  if now == '0' then
    later('hash', 'tallies', key)
    return later('zset', 'tallied', key)
  end
  later('set', 'tallies', key, now)
  later('add', 'tallied', key, 0)
end

-- A service and a user that are counted and not listed.
function REPAIR.tallied(_, key)
  if redis.call('HEXISTS', store.tallies, key) == 1 then later('add', 'tallied', key, 0) end
end

-- Where a job stands: what was seen, a line break, where it does once all jobs are placed anew. All that follows from the
-- head is written with it; gates, users and pools are recounted once all jobs stand where they should.
function REPAIR.place(id, walks)
  local was, now = string.match(walks, '^([^\n]*)\n([^\n]*)$')
  local job = jobs.of(id)
  if not job or table.concat(job[WALKS] or {}, ' ') ~= was then return end
  job[WALKS] = {}
  for depth in string.gmatch(now, '%d+') do job[WALKS][#job[WALKS] + 1] = tonumber(depth) end
  REPAIR.offer('', id)
end

-- An offer of a job that may not start, or none of one that may.
function REPAIR.offer(_, id)
  local job = jobs.of(id)
  if not job then return end
  local may_start = job[STATE] == QUEUED and gates.has_all(job) and job[TIMER] ~= DUE
  job[OFFER], job.is_plain, jobs.dirty[id] = may_start and (job[OFFER] or 'r'), false, job
end

-- A line that is not where its length belongs.
function REPAIR.crowd(_, key)
  local gate = examine.gate(redis.call('HGET', store.gates, key))
  local crowd = gate and gate_format.crowd(gate[WAITING]) or 0
  if crowd > 0 then later('add', 'crowds', key, crowd) else later('zset', 'crowds', key) end
end

-- A gate's counts: what was seen, a line break, what it has to be.
function REPAIR.gate(key, counts)
  local was, now = string.match(counts, '^([^\n]*)\n([^\n]*)$')
  local packed = redis.call('HGET', store.gates, key)
  local gate = examine.gate(packed)
  if (gate and table.concat(gate, ' ', 1, WAITING) or '') ~= was then return end
  local mended = {}
  for number in string.gmatch(now, '%d+') do mended[#mended + 1] = tonumber(number) end
  mended[TO_ADVANCE] = gate and gate[TO_ADVANCE] or 0
  if math.max(unpack(mended)) == 0 then later('hash', 'gates', key) else later('set', 'gates', key, cmsgpack.pack(mended)) end
end

-- A counter: what was seen, a line break, what it has to be.
function REPAIR.counter(name, counts)
  local was, now = string.match(counts, '^([^\n]*)\n([^\n]*)$')
  local at = examine.counted[name] or examine.others[name]
  if stand_in.state == 'kept' and examine.int(S[at]) ~= was then return end
  S[at] = args.whole(now, name, -INT_MAX)
  -- Tokens of another history: new ones are of a new epoch, and a lease in force, of unknown length, may be
  -- renewed first.
  if name == 'epoch' then S[RUN], S[LEASE_MAX] = 'repaired', math.max(S[LEASE_MAX], LEASE_LOST_MS) end
end

-- How many unfinished jobs a limit of a task or a pool counts: what was seen, a line break, what it has to be.
function REPAIR.unfinished(field, counts)
  local was, now = string.match(counts, '^([^\n]*)\n([^\n]*)$')
  local limiter = limits.of(field)
  if limiter and limiter.count and examine.int(limiter.count) == was then limits.add(limiter, args.whole(now, field) - limiter.count) end
end

-- How many ready jobs a user has, and the user's turn.
function REPAIR.user(_, key)
  local size = examine.ready_of_user(key)
  local _, turn = examine.pair(redis.call('HGET', store.users, key))
  local member = examine.turn(key, turn)
  if not member then return later('hash', 'users', key) end
  if size == 0 then
    later('hash', 'users', key)
    return later('zset', 'turns', member)
  end
  if turn <= 0 or not redis.call('ZSCORE', store.turns, member) then
    if not turns[key] then
      S[TURN] = S[TURN] + 1
      turns[key] = S[TURN]
    end
    turn = turns[key]
    later('add', 'turns', examine.turn(key, turn), 0)
  end
  later('set', 'users', key, cmsgpack.pack({size, turn}))
end

-- How many ready jobs a pool has, and of how many users.
function REPAIR.pool(_, name)
  local size = examine.ready_of_pool(name)
  local is_refused = string.find(name, '\1', 1, true)
  if size == 0 then
    later('hash', 'pools', name)
    return is_refused or later('unlink', 'wake:pool:' .. name)
  end
  later('set', 'pools', name, cmsgpack.pack({size, examine.users_of_pool(name)}))
  if not is_refused then later('add', 'wake:pool:' .. name, '1', 0) end
end

-- Which queues of refused jobs a pool has; markers are set again with the next claim.
function REPAIR.refused(_, item)
  local pool, names = string.match(item, '^[^\1]*'), {}
  local stored = redis.call('HGETALL', store.pools)
  for at = 1, #stored, 2 do
    if string.sub(stored[at], 1, #pool + 1) == pool .. '\1' then names[#names + 1] = stored[at] end
  end
  table.sort(names, form.less)
  local _, markers = examine.refused(pool)
  if #names > 0 then return later('set', 'refused', pool, cmsgpack.pack({names, markers})) end
  later('hash', 'refused', pool)
  for _, marker in ipairs(markers) do later('unlink', 'wake:release:' .. marker) end
end

-- How many jobs run at a gate by a limit, and how many are parked; those are looked at now.
function REPAIR.gauge(name, key)
  local limiter, place = examine.place(name, key)
  if not limiter then return end
  local started = examine.started_at(place)
  local parked, looks = examine.counter(limiter, place, started)
  local is_read, kept = pcall(cmsgpack.unpack, redis.call('HGET', store[name], key) or '')
  local counter = {started, parked, 0, looks and NOW}
  if limits.is_each(limiter) and limiter.tokens then
    local meter = examine.meter(limiter, is_read and type(kept) == 'table' and kept or {}) or {spent = 0, at = 0, log = not limiter.burst and {} or nil}
    counter[5], counter[6], counter[7] = meter.spent, meter.at, meter.log
  end
  if started + parked == 0 then counter[4] = (counter[5] or 0) > 0 and NOW end
  if started + parked == 0 and not counter[4] then later('hash', name, key) else later('set', name, key, cmsgpack.pack(counter)) end
  if counter[4] then later('add', 'looks', place, NOW) else later('zset', 'looks', place) end
end

-- A session of which only the receipt is known is forgotten in ten minutes, as all are.
function REPAIR.session(_, session)
  if redis.call('HEXISTS', store.receipts, session) == 1 then later('add', 'sessions', session, NOW) end
end

-- Jobs that a worker has to be told to stop.
function REPAIR.untold(_, worker)
  local packed = redis.call('HGET', store.untold, worker)
  if not packed then return end
  local ids = {}
  for _, id in ipairs(cmsgpack.unpack(packed)) do
    local job = examine.head(id)
    if job and job[STATE] == STARTED and job[WORKER] == worker and job[CANCEL] then ids[#ids + 1] = id end
  end
  if #ids == 0 then later('hash', 'untold', worker) else later('set', 'untold', worker, cmsgpack.pack(ids)) end
end

-- Advance a line whose head may move on and for which no leftover exists.
function REPAIR.stalled(_, key)
  local gate = gates.of(key)
  S[MARKS] = S[MARKS] + 1
  gate[TO_ADVANCE] = S[MARKS]
  gates.dirty[key] = gate
  work.push({'g', key, S[MARKS]})
end

-- Edges to a job that is over or lost: resolve them; to the start of a submission in parts: let its jobs go.
function REPAIR.unresolved(_, id)
  local job = jobs.of(id)
  if job and jobs.is_start(id) then
    work.push({job[STATE] == FINISHED and 'k' or 'x', id, 0, S[NUMBERS]})
  else
    work.push({'r', id, 0, S[NUMBERS], job and (job[GONE] and 'gone' .. job[STATE] or transitions.end_of(job)) or 'gone'})
    if job and not job[GONE] then job[AWAITED], jobs.dirty[id] = RESOLVING, job end
  end
end

-- A wait for a signal that no job waits for.
function REPAIR.unawaited(_, id)
  local wait = jobs.of(id)
  if wait then lifecycle.end_unawaited(wait) end
end

-- A job that cannot run any more, and whose edges keep others for it.
function REPAIR.unreleased(_, id) work.push({'p', id}) end

-- Jobs parked by a pause or a limit that no longer exists: offer them again.
function REPAIR.unparked(_, id)
  local job = jobs.of(id)
  local by = job and job[OFFER]
  if form.is_place(by) then by = -form.split(by, 1) end
  if type(by) == 'number' and not turns[by] then
    turns[by] = true
    work.push({'u', by})
  end
end

-- Cancel the jobs behind a dead job whose policy asks for it and for which no leftover exists.
function REPAIR.unswept(_, id)
  local job = jobs.of(id)
  if not (job and job[STATE] == FAILED and job[WALKS]) then return end
  S[NUMBERS] = S[NUMBERS] + 1
  local gate_keys = {}
  for _, claim in ipairs(form.claims(job[CLAIMS])) do gate_keys[#gate_keys + 1] = claim.keys[#claim.keys] end
  work.push(work.cancel_sweep(gate_keys, S[NUMBERS], 'behind the dead job ' .. id, job))
end

-- Keep the steps of a job of which name and result are there, numbered anew.
local function amend_steps(job)
  local name, kept, bytes, wanted = 'steps:' .. job.id, 0, 0, {}
  for number = 1, job[STEPS] do
    local named = redis.call('HGET', store[name], 'n' .. number)
    local field = named and '=' .. (string.match(named, '^%d+ (.+)$') or '')
    local stored = field and not wanted[field] and redis.call('HGET', store[name], field)
    if stored then
      kept, bytes = kept + 1, bytes + #field - 1 + #stored
      wanted['n' .. kept], wanted[field] = named, stored
    end
  end
  for _, field in ipairs(redis.call('HKEYS', store.steps(job.id))) do
    if not wanted[field] then later('hash', name, field) end
  end
  for field, value in pairs(wanted) do
    if string.byte(field) == 110 then later('set', name, field, value) end
  end
  job[STEPS], job[STEP_BYTES] = kept, bytes
end

-- Clear the fields of a head that refer to data lost for good.
function REPAIR.amend(_, id)
  local job = jobs.of(id)
  if not job then return end
  if job[RESULT] == 's' and redis.call('HEXISTS', store.results, id) == 0 then job[RESULT] = false end
  if job[REPORTED] and redis.call('HEXISTS', store.progress, id) == 0 then job[REPORTED] = false end
  local logs = redis.call('LLEN', store.log(id))
  if logs ~= examine.logs_kept(job) then job[LOGS] = logs end
  job[ERRORS] = redis.call('LLEN', store.errors(id))
  if redis.call('HLEN', store.steps(id)) ~= 2 * job[STEPS] then amend_steps(job) end
  job[BLOCKED] = redis.call('HLEN', store.blocked(id))
  local is_lost = false
  for portion = 0, job[NEEDS] and job[PORTIONS] or 0 do
    is_lost = is_lost or redis.call('HEXISTS', store.needs, edges.field(id, portion)) == 0
  end
  if job[NEEDS] and is_lost then
    job[NEEDS], job[PORTIONS] = false, false
-- Without that list an edge that has closed could no longer be recognised as its own.
    for dependency_id, edge in pairs(edges.open_of(job)) do
      edges.add(job, dependency_id, string.sub(edge, 1, 3) .. string.sub(AFTER, 4))
    end
  end
-- Its declared dependencies tell which open edges were lost.
  if job[NEEDS] == HELD and not OVER[job[STATE]] and (job[STATE] == DEFERRED or job[STATE] == SCHEDULED) then
    for _, need in ipairs((lifecycle.evaluate(edges.all_needs(job), {}))) do
      if not edges.of(job, need[1]) then edges.add(job, need[1], need[2]) end
    end
  end
  jobs.dirty[id] = job
  if job[BLOCKED] == 0 and job[STATE] == DEFERRED then transitions.queue(job) end
end

-- A job that cannot run any more, because what it was asked to do is lost: its place, edges and records go.
function REPAIR.remove(_, id)
  local job = jobs.of(id)
  if not job or job[SHORT_SPEC] or redis.call('HEXISTS', store.specs, id) == 1 then return end
  if jobs.is_start(id) then
    -- The starts of all submissions in parts ask for the same.
    jobs.set_spec(job, START_SPEC)
    jobs.dirty[id] = job
    return
  end
  if job[STATE] == STARTED then transitions.stop(job) elseif job[OFFER] then transitions.withdraw(job) end
  timers.drop(job)
  job[EXPIRY_MS], job[BACKING_OFF], job[UNKNOWN_TASKS] = false, false, 0
  if job[PORTIONS] and job[NEEDS] == HELD then
    for portion = 0, job[PORTIONS] do edges.release_portion(job, portion) end
  end
  edges.release(job)
  gates.vacate(job)
  if edges.count(id) > 0 then work.push({'r', id, 0, S[NUMBERS], 'gone'}) end
  transitions.ended[#transitions.ended + 1] = job
  -- It stays known in this step: others may meet it in a line that it has just left.
  job.pruned, jobs.dirty[id] = true, job
  S[PRUNED_IN_ALL] = S[PRUNED_IN_ALL] + 1
end

for at = 10, #ARGV, 3 do REPAIR[args.one_of(at, REPAIR)](ARGV[at + 1], ARGV[at + 2]) end

plan.commit()
for _, write in ipairs(writes) do WRITE[write[1]](unpack(write, 2)) end
-- Recompute the fields of the state about sets and leftovers.
timers.read_all()
S[LEFT_STORED] = redis.call('LLEN', store.left)
redis.call('HSET', store.meta, 'state', pack_state(S))
return {'DONE', redis.call('HGET', store.meta, 'state')}
