#!lua flags=no-writes,allow-oom
--[[ heads: for the doctor, recount some jobs from their heads, and check that all data derived from the heads exists.
  ARGV[9..]         ids, none twice; unknown ones are passed over
  Returns names, each with its value:
    problems, five for each: kind, key, item, subject (an id), stored value; counted, names of counters and how many
    of these jobs there are; entries, names of indexes and how many entries these jobs have there; gates, keys and the
    counts of these jobs there, IS IX S X, and how many stand in line; placed, three for each with claims and a place: its id,
    numbers (its place, 1 if it keeps its gates because it runs, backs off or is dead, and its walks) and claims; tallies, services with users and how many records they
    have among these; running, places of limits and how many of these jobs run there; started, ids and claims of those that run; waits, ids of those that wait for others, and these, one
    a line; wide, ids of those that wait too, with others for more than are told of; greatest,
    names of counters, each with the greatest number in these jobs; whole, 1 if these were all jobs there are, and then
    counters, as stored at that moment, and stored and counts, the gates and the tallies as they are stored. ]]
-- @include doctor/lib/rules
-- @include doctor/lib/examine_heads
args.count(8, 1)
local GATES_MAX, WAITS_MAX = 4000, 2000 -- @const
local waits_told, wide, running = 0, {}, {}
local problems, counted, entered, held, placed, tallies, started, greatest, waits = {}, {}, {}, {}, {}, {}, {}, {}, {}

local function problem(...)
  for _, part in ipairs({...}) do problems[#problems + 1] = tostring(part) end
end

local function see(name, number)
  if number and number > (greatest[name] or -1) then greatest[name] = number end
end

local function count_gates(job)
  for index, depth in ipairs(job[WALKS] or {}) do
    local claim = form.claims(job[CLAIMS])[index]
    for at = 0, claim and math.min(depth, #claim.keys - 1) or -1 do
      local key = claim.keys[at + 1]
      held[key] = held[key] or {0, 0, 0, 0, 0}
      local mode = at == depth and WAITING or gates.mode_at(claim, at)
      held[key][mode] = held[key][mode] + 1
    end
  end
end

local function tell_place(id, job)
  local walks = job[WALKS]
  if job[SEQ] == 0 or job[CLAIMS] == '' or form.is_counted(job[CLAIMS]) or OVER[job[STATE]] and not walks then return end
  local keeps = job[STATE] ~= QUEUED or job[TIMER] == DUE
  placed[#placed + 1] = id
  placed[#placed + 1] = examine.int(job[SEQ]) .. (keeps and ' 1 ' or ' 0 ') .. table.concat(walks or {}, ' ')
  placed[#placed + 1] = job[CLAIMS]
end

local function check_notes(id, job)
  if job[RESULT] == 's' and redis.call('HEXISTS', store.results, id) == 0 then problem('note', 'results', id, id, '') end
  if job[REPORTED] and redis.call('HEXISTS', store.progress, id) == 0 then problem('note', 'progress', id, id, '') end
  local logs = redis.call('LLEN', store.log(id))
  if logs ~= examine.logs_kept(job) then problem('note', 'log:' .. id, '', id, logs) end
  local errors = redis.call('LLEN', store.errors(id))
  local steps = redis.call('HLEN', store.steps(id))
  if steps ~= 2 * job[STEPS] then problem('note', 'steps:' .. id, '', id, steps) end
  if errors ~= job[ERRORS] then problem('note', 'errors:' .. id, '', id, errors) end
end

local function check_edges(id, job)
  local size = redis.call('HLEN', store.blocked(id))
  if size ~= job[BLOCKED] then problem('edges', 'blocked:' .. id, '', id, size) end
  if job[STATE] == DEFERRED and job[BLOCKED] == 0 and not jobs.is_start(id) then problem('edges', 'jobs', id, id, 0) end
  if job[AWAITED] == RESOLVING and OVER[job[STATE]] and not job[GONE] and not examine.is_left('r', id) then
    problem('unresolved', 'left', '', id, '')
  end
  -- Until such work is done, a wait may have no job yet, or none any more.
  local is_unawaited = jobs.is_wait(id) and not OVER[job[STATE]] and not jobs.is_hidden(job) and not edges.has_dependents(job)
  if is_unawaited and not examine.is_left('k') and not examine.is_left('p') then problem('unawaited', 'waiting:' .. id, '', id, '') end
  if not job[NEEDS] then return end
  if redis.call('HEXISTS', store.needs, id) == 0 then return problem('note', 'needs', id, id, '') end
  for portion = 1, job[PORTIONS] or 0 do
    local field = edges.field(id, portion)
    if redis.call('HEXISTS', store.needs, field) == 0 then problem('note', 'needs', field, id, '') end
  end
end

local function check_offer(job)
  if job[OFFER] ~= 'r' then return end
  local queue = ready_queue.queue_of(job)
  local key = queue .. '\0' .. job[USER]
  if redis.call('HEXISTS', store.users, key) == 0 then problem('user', 'users', key, key, '') end
  if redis.call('HEXISTS', store.pools, queue) == 0 then problem('pool', 'pools', queue, queue, '') end
end

local function check_limits(job)
  local places = {}
  if job[STATE] == STARTED then places = limits.places(job) end
  if form.is_place(job[OFFER]) then
    local limiter, key = limits.at(job[OFFER])
    if limiter then places = {{limiter = limiter, key = key}} end
  end
  for _, at in ipairs(places) do
    if job[STATE] == STARTED then running[at.place] = (running[at.place] or 0) + meters.cost_of(job) end
    if redis.call('HEXISTS', store.gauges(at.limiter.number), at.key) == 0 then
      problem('gauge', 'gauges:' .. examine.int(at.limiter.number), at.key, at.key, '')
    end
  end
end

-- Count an unfinished job for the limits of its task and its pool that count such.
local function count_unfinished(job)
  if OVER[job[STATE]] or jobs.is_start(job.id) then return end
  for _, field in ipairs({'t' .. job[TASK], 'p' .. job[POOL]}) do
    local name = 'unfinished:' .. field
    if limits.counts(limits.of(field), job) then counted[name] = (counted[name] or 0) + 1 end
  end
end

local function see_all(job)
  see('numbers', math.max(job[NUMBER], job[SINCE]))
  see('places', job[SEQ])
  if type(job[OFFER]) == 'number' then see('pause', job[OFFER]) end
  if form.is_place(job[OFFER]) then see('pause', (form.split(job[OFFER], 1))) end
  local epoch_s, grants = string.match(job[TOKEN] or '', '^(%d+)%.(%d+)$')
  if epoch_s then
    see('epoch', tonumber(epoch_s))
    if tonumber(epoch_s) == S[EPOCH] and tonumber(grants) > S[GRANTS] then see('epoch', S[EPOCH] + 1) end
  end
end

local function check_catalog(id, job)
  local name = examine.unlisted(id, job)
  if name then problem('bit', name, id, id, '') end
  local key = record_index.lists(job) and record_index.tally_key(job)
  if key then tallies[key] = (tallies[key] or 0) + 1 end
end

local function check(id, job)
  check_catalog(id, job)
  check_notes(id, job)
  check_edges(id, job)
  check_offer(job)
  count_gates(job)
  tell_place(id, job)
  see_all(job)
  -- One that cannot be read is told of where it is kept.
  pcall(check_limits, job)
  pcall(count_unfinished, job)
  if not job[SHORT_SPEC] then
    entered.specs = (entered.specs or 0) + 1
    if redis.call('HEXISTS', store.specs, id) == 0 then problem('spec', 'specs', id, id, '') end
  end
  if job[STATE] == STARTED then
    started[#started + 1] = id
    started[#started + 1] = job[CLAIMS]
  end
  if job[STATE] == DEFERRED and job[BLOCKED] > 0 then
    waits_told = waits_told + redis.call('HLEN', store.blocked(id))
    if waits_told > WAITS_MAX then
      wide[#wide + 1] = id
    else
      waits[#waits + 1] = id
      waits[#waits + 1] = table.concat(redis.call('HKEYS', store.blocked(id)), '\n')
    end
  end
  if job[STATE] == FAILED and job[WALKS] and form.policy(job)[ON_DEAD] == 'cancel_behind' and not examine.is_left('c', id) then
    problem('unswept', 'left', '', id, '')
  end
  local text, is_offer = examine.contradiction(job)
  if text then problem(is_offer and 'offer' or 'head', 'jobs', id, id, text) end
end

local found = 0
for at = 9, #ARGV do
  local id = ARGV[at]
  local job = examine.head(id)
  if job ~= false then found = found + 1 end
  local entries, counts = examine.entries(id)
  if job and entries and pcall(check, id, job) then
    for name, members in pairs(entries) do
      local is_fixed = not string.find(name, ':', 1, true)
      for member, score in pairs(members) do
        local stored = redis.call('ZSCORE', store[name], member)
        if tonumber(stored or nil) ~= score then problem('entry', name, member, id, stored or '') end
        if is_fixed then entered[name] = (entered[name] or 0) + 1 end
      end
    end
    if jobs.is_hidden(job) then counted.hidden = (counted.hidden or 0) + 1 end
    for name, number in pairs(counts) do counted[name] = (counted[name] or 0) + number end
  elseif job ~= false then
    problem('damaged', 'jobs', id, id, '')
  end
end

local function flat(named)
  local list = {}
  for name, number in pairs(named) do
    list[#list + 1] = name
    list[#list + 1] = examine.int(number)
  end
  return list
end

local gates_held, stored_gates, stored_tallies, counters = {}, {}, {}, {}
for key, gate in pairs(held) do
  gates_held[#gates_held + 1] = key
  gates_held[#gates_held + 1] = table.concat(gate, ' ')
end
local is_whole = found == redis.call('HLEN', store.jobs) and redis.call('HLEN', store.gates) <= GATES_MAX
  and redis.call('HLEN', store.tallies) <= GATES_MAX
if is_whole then
  local stored = redis.call('HGETALL', store.gates)
  for at = 1, #stored, 2 do
    local gate = examine.gate(stored[at + 1])
    stored_gates[#stored_gates + 1] = stored[at]
    stored_gates[#stored_gates + 1] = gate and table.concat(gate, ' ', 1, WAITING) or ''
  end
  stored_tallies = redis.call('HGETALL', store.tallies)
  for name, at in pairs(examine.counted) do counters[name] = S[at] end
  examine.each_count(function(name, number) counters[name] = number end)
end
return {
  'problems', problems, 'counted', flat(counted), 'entries', flat(entered), 'gates', gates_held, 'placed', placed, 'tallies', flat(tallies),
  'running', flat(running), 'started', started, 'waits', waits, 'wide', wide, 'greatest', flat(greatest), 'whole', is_whole and 1 or 0, 'counters', flat(counters), 'stored', stored_gates, 'counts', stored_tallies,
}
