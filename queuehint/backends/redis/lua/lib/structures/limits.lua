--[[ limits: concurrency, rate and length limits of a place; mirrors core.structures.limits, which explains the theory.
  LIMITS maps a field to a limit: = and a gate, / and a gate for each child, - for the namespace, t and a task, p and a pool. A limit of
  a task or a pool has one counter, whose key is a line end and the field instead of a gate. A limit that parks jobs has a number;
  GAUGES:number has the counters of each gate: what the jobs that run cost, jobs parked, jobs released together, the time of the next
  check; of each child by itself its meter; of one that calls in order the job called. A limit of the unfinished jobs of a task or a
  pool counts them itself, and stores the last job number of when it began to. A place is a sortable number and a gate; LOOKS sorts
  places by the time of their check, in ms. A parked job has its place as OFFER and is in PARKED under it, by rank. ]]
-- @include lib/asking/unfinished
-- @include lib/formats/meters
local LOOK_MS, CALLED_MAX, LIMITS_MAX, AT_ONCE_MAX = 5000, 100, 1000, 1000 -- @const
local limits = {}

lazily(limits, function()
local limiters, changed_limiters, counters, retired, carried, places_known = {}, {}, {}, {}, {}, {}

local function read_limiter(field, packed)
  local kept = cmsgpack.unpack(packed)
  return {field = field, number = kept[1], most = kept[2], tokens = kept[3], per_ms = kept[4], pending = kept[5], spent = kept[6], at = kept[7],
    burst = kept[8], log = kept[9] or nil, count = kept[10], since = kept[11]}
end

-- Whether a limit is of each child of its path by itself.
function limits.is_each(limiter) return string.byte(limiter.field) == 47 end

-- Whether the key of a counter is that of a task or a pool.
function limits.is_selection(key) return string.byte(key) == 10 end

-- What a job is offered by that costs more than a limit has: it is in PARKED with those of the limit, and of no counter.
function limits.apart(limiter) return form.sortable(limiter.number) .. '\1' end

-- The limit, with its key, that has less than a job costs and has parked it; nil if none has.
function limits.apart_by(job)
  for _, at in ipairs(limits.places(job)) do
    if job[OFFER] == limits.apart(at.limiter) then return at end
  end
end

-- The limit of a field; false if there is none.
function limits.of(field)
  local limiter = limiters[field]
  if limiter == nil then
    local packed = redis.call('HGET', store.limits, field)
    limiter = packed and read_limiter(field, packed)
    limiters[field] = limiter
  end
  return limiter
end

function limits.all()
  local all, stored = {}, redis.call('HGETALL', store.limits)
  for at = 1, #stored, 2 do all[#all + 1] = read_limiter(stored[at], stored[at + 1]) end
  return all
end

-- How many unfinished jobs count for a field.
function limits.count_pending(field)
  if not unfinished.is_of_selection(field) then return unfinished.count(field) end
  return limits.of(field).count or corrupt('a limit in ' .. store.limits .. ' counts nothing')
end

-- Whether a limit of a task or a pool counts its unfinished jobs, and this one among them. Those of a submission in parts
-- that are older than the limit count once they are let go: until then no index leads to them.
function limits.counts(limiter, job)
  return limiter and limiter.count and (job[NUMBER] > limiter.since or not (job[STAGED] and job[STATE] == DEFERRED))
end

function limits.add(limiter, by) limiter.count, changed_limiters[limiter.field] = limiter.count + by, true end

-- Count an unfinished job for the limits of its task and its pool, or count it no more.
function limits.count(job, by)
  if jobs.is_start(job.id) then return end
  for _, field in ipairs({'t' .. job[TASK], 'p' .. job[POOL]}) do
    local limiter = limits.of(field)
    if limits.counts(limiter, job) then limits.add(limiter, by) end
  end
end

-- Count what a job is now, and no more what it was before this step.
function limits.recount(was, job)
  if was and not OVER[was[STATE]] then limits.count(was, -1) end
  if job and not OVER[job[STATE]] then limits.count(job, 1) end
end

-- The limits on starts at which a job counts, each with the gate where: for each claim from the deepest gate up, then
-- those of its task and its pool.
function limits.places(job)
  local known_by = job[TASK] .. '\n' .. job[POOL] .. '\n' .. job[CLAIMS]
  local found = places_known[known_by]
  if found then return found end
  local seen = {}
  found = {}
  local function add(field, key)
    local limiter = limits.of(field)
    if limiter and limiter.number > 0 then
      local place = form.sortable(limiter.number) .. key
      if not seen[place] then
        seen[place] = true
        found[#found + 1] = {limiter = limiter, key = key, place = place}
      end
    end
  end
  for _, claim in ipairs(form.claims(job[CLAIMS])) do
    for depth = #claim.keys, 1, -1 do
      add('=' .. claim.keys[depth], claim.keys[depth])
      if depth > 1 then add('/' .. claim.keys[depth - 1], claim.keys[depth]) end
    end
  end
  add('t' .. job[TASK], '\nt' .. job[TASK])
  add('p' .. job[POOL], '\np' .. job[POOL])
  places_known[known_by] = found
  return found
end

-- The limit of a place, its gate and its number; false for the first if that limit is no more, or the place is of jobs apart.
function limits.at(place)
  local number, key = form.split(place, 1)
  if key == '\1' then return false, key, number end
  local keys = form.claims('x' .. key)[1].keys
  local fields = {'=' .. key, #keys > 1 and '/' .. keys[#keys - 1] or nil}
  if limits.is_selection(key) then fields = {string.sub(key, 2)} end
  for _, field in ipairs(fields) do
    local limiter = limits.of(field)
    if limiter and limiter.number == number then return limiter, key, number end
  end
  return false, key, number
end

local function counter_at(at)
  local counter = counters[at.place]
  if not counter then
    local idle = carried[at.place]
    local packed = idle and idle.packed or redis.call('HGET', store.gauges(at.limiter.number), at.key)
    local kept = packed and cmsgpack.unpack(packed) or {0, 0, 0, false}
    counter = {limiter = at.limiter, key = at.key, place = at.place, started = kept[1], parked = kept[2], calls = kept[3], look_ms = kept[4],
      was_look_ms = kept[4], spent = kept[5] or 0, at = kept[6] or 0, log = kept[7] or nil, called = kept[8], is_strict = kept[9], called_rank = kept[10],
      added = {}, added_ids = {}}
    -- The meter of a rate belongs to the limit, or to each child by itself.
    counter.meter = limits.is_each(at.limiter) and counter or at.limiter
    counters[at.place] = counter
    if idle then carried[at.place], counter.was_look_ms, counter.is_changed = nil, false, true end
  end
  return counter
end

local function is_full(counter, cost) return counter.limiter.most and counter.started + cost > counter.limiter.most end

-- When the rate has room: now, or later.
local function room_ms(counter, cost) return counter.limiter.tokens and meters.room_ms(counter.meter, counter.limiter, cost) or NOW end

-- Until when a counter is kept for the sake of its own meter alone; false if it need not be.
local function kept_until_ms(counter)
  if counter.meter ~= counter or not counter.limiter.tokens then return false end
  local free_ms = meters.free_ms(counter, counter.limiter)
  return free_ms > NOW and free_ms
end

-- The first of those parked at a counter before this step that still is.
local function first_stored(counter)
  counter.walk = counter.walk or paths.walk(store.parked, {{'[' .. counter.place .. '\0', '(' .. counter.place .. '\1'}}, 1, false, 16)
  while not counter.stored or counter.stored[OFFER] ~= counter.place or counter.added_ids[counter.stored.id] do
    local member = counter.walk.next()
    if not member then return nil end
    counter.stored = jobs.known(limits.id_of(member), store.parked)
  end
  return counter.stored
end

-- The id in a member of PARKED that stands under a place.
function limits.id_of(member)
  local from = string.find(member, '\0', 1, true) + 1
  local _, id = form.split(member, from + (string.byte(member, from) == 49 and 16 or 1))
  return id
end

-- Take out the first by rank and number of those parked at a counter.
local function take_parked(counter)
  local stored = first_stored(counter)
  if not counter.is_sorted then
    table.sort(counter.added, form.sooner)
    counter.is_sorted = true
  end
  while counter.added[1] and counter.added[1][3][OFFER] ~= counter.place do table.remove(counter.added, 1) end
  local added = counter.added[1]
  if not stored and not added then corrupt('jobs are counted in ' .. store.gauges(counter.limiter.number) .. ' that nobody has put aside') end
  if stored and (not added or form.sooner({ready_queue.rank_of(stored), stored[NUMBER]}, added)) then return stored end
  return added[3]
end

-- What the first of those parked at a counter costs.
local function first_cost(counter)
  return counter.is_strict and counter.parked > 0 and meters.cost_of(take_parked(counter)) or 1
end

-- When the next job may start at a place by time alone, nil if one may now, or only after an end; the first in order, if there is one.
function limits.until_ms(limiter, key, place)
  local counter = counter_at({limiter = limiter, key = key, place = place})
  local cost = first_cost(counter)
  local ms = room_ms(counter, cost)
  return ms > NOW and not is_full(counter, cost) and ms or nil, counter.is_strict and not counter.called and take_parked(counter)
end

-- Call up to *count* jobs if there is room, and work out when to look again; return how many were called.
local function refresh(counter, count)
  local called, look_ms, was_strict = 0, false, counter.is_strict
  local cost = not counter.called and counter.parked > 0 and first_cost(counter)
  if cost and not is_full(counter, cost) then
    look_ms = room_ms(counter, cost)
    if look_ms <= NOW then
      called = math.min(count, counter.is_strict and 1 or counter.parked)
      for _ = 1, called do
        local job = take_parked(counter)
        counter.parked = counter.parked - 1
        if counter.is_strict then counter.called, counter.called_rank = job[NUMBER], ready_queue.rank_of(job) end
        ready_queue.add(job)
      end
      look_ms = (counter.parked > 0 or counter.called) and NOW + LOOK_MS
    end
  elseif counter.called then
    look_ms = counter.look_ms
  end
  local calls = look_ms and called or 0
  if counter.parked == 0 and not counter.called then counter.is_strict = false end
  if counter.started == 0 and counter.parked == 0 and not counter.called then look_ms = kept_until_ms(counter) end
  if called > 0 or counter.calls ~= calls or counter.look_ms ~= look_ms or counter.is_strict ~= was_strict then
    counter.calls, counter.look_ms, counter.is_changed = calls, look_ms, true
  end
  return called
end

-- Whether a job that is not parked is the one called in order, or comes before that one and all that are parked.
local function is_next(counter, job)
  if counter.called == job[NUMBER] then return true end
  local place = {ready_queue.rank_of(job), job[NUMBER]}
  if counter.called and not (counter.called_rank and form.sooner(place, {counter.called_rank, counter.called})) then return false end
  local first = counter.parked > 0 and take_parked(counter)
  return not first or form.sooner(place, {ready_queue.rank_of(first), first[NUMBER]})
end

-- The counter that has no room for a job, or a limit that is less than its cost; nil if it may start.
function limits.stops(job)
  local cost = meters.cost_of(job)
  for _, at in ipairs(limits.places(job)) do
    if cost > meters.costs_max(at.limiter) then return {apart = limits.apart(at.limiter)} end
    local counter = counter_at(at)
    if counter.is_strict and not is_next(counter, job) or is_full(counter, cost) or room_ms(counter, cost) > NOW then return counter end
  end
end

-- Put aside a job, just taken from the ready queue, that this counter stops.
function limits.park(job, counter)
  job[OFFER], jobs.dirty[job.id] = counter.apart or counter.place, job
  if counter.apart then return limits.job_left(job) end
  counter.parked, counter.is_changed = counter.parked + 1, true
  if meters.cost_of(job) > 1 or form.is_counted(job[CLAIMS]) then counter.is_strict = true end
  counter.added[#counter.added + 1] = {ready_queue.rank_of(job), job[NUMBER], job}
  counter.added_ids[job.id], counter.is_sorted = true, false
  refresh(counter, 1)
  limits.job_left(job, counter)
end

-- Order a job that is parked by the level it has now, which is a better one.
function limits.rerank(job)
  for _, at in ipairs(limits.places(job)) do
    if at.place == job[OFFER] then
      local counter = counter_at(at)
      counter.added[#counter.added + 1] = {ready_queue.rank_of(job), job[NUMBER], job}
      counter.added_ids[job.id], counter.is_sorted = true, false
    end
  end
end

-- Count a job that starts.
function limits.enter(job)
  local cost = meters.cost_of(job)
  for _, at in ipairs(limits.places(job)) do
    local counter, limiter = counter_at(at), at.limiter
    counter.started, counter.is_changed = counter.started + cost, true
    if counter.called == job[NUMBER] then counter.called = false end
    if limiter.tokens then
      meters.spend(counter.meter, limiter, cost)
      if counter.meter == limiter then changed_limiters[limiter.field] = true end
    end
  end
  for _, at in ipairs(limits.places(job)) do refresh(counter_at(at), 1) end
end

-- Count a job no more that has stopped running.
function limits.leave(job)
  for _, at in ipairs(limits.places(job)) do
    local counter = counter_at(at)
    counter.started, counter.is_changed = counter.started - meters.cost_of(job), true
    if counter.started < 0 then corrupt('fewer than no jobs run at ' .. form.queue_key(at.key) .. ' by ' .. store.gauges(at.limiter.number)) end
  end
  for _, at in ipairs(limits.places(job)) do refresh(counter_at(at), 1) end
end

-- Take back a job that was parked.
function limits.withdraw(job)
  for _, at in ipairs(limits.places(job)) do
    if at.place == job[OFFER] then
      local counter = counter_at(at)
      counter.parked, counter.is_changed = counter.parked - 1, true
    end
  end
  job[OFFER] = false
  jobs.dirty[job.id] = job
end

-- Have others called in the stead of a job that is not in the ready queue any more and was not started; those at or below
-- the counter where it was parked, if it was, could not start either.
function limits.job_left(job, parked_at)
  for _, at in ipairs(limits.places(job)) do
    local key = parked_at and not limits.is_selection(parked_at.key) and not limits.is_selection(at.key) and parked_at.key
    local is_below = key and (key == '' or at.key == key or string.sub(at.key, 1, #key + 1) == key .. ':')
    local counter = counter_at(at)
    local is_called = counter.called == job[NUMBER]
    if is_called then counter.called, counter.is_changed = false, true end
    if is_called or not is_below then refresh(counter, is_below and 0 or 1) end
  end
end

local due, due_at, due_offset, is_due_read = {}, 1, 0, false

-- The first counter whose time to look again has come; nil if there is none.
local function first_due()
  while true do
    if due_at > #due then
      if is_due_read then return nil end
      due = redis.call('ZRANGEBYSCORE', store.looks, '-inf', string.format('%.0f', NOW), 'WITHSCORES', 'LIMIT', due_offset, 16)
      due_at, due_offset, is_due_read = 1, due_offset + 16, #due < 32
    else
      local limiter, key = limits.at(due[due_at])
      local counter = limiter and counter_at({limiter = limiter, key = key, place = due[due_at]})
      if counter and counter.look_ms == tonumber(due[due_at + 1]) then return counter end
      due_at = due_at + 2
    end
  end
end

function limits.is_due() return first_due() ~= nil end

-- Let the first counter look whose time has come; return how many jobs it called, nil if there is no counter.
function limits.recheck()
  local counter = first_due()
  if not counter then return nil end
  -- Nobody has claimed the one that was called: no worker serves its pool.
  counter.called = false
  local count = math.min(2 * counter.calls, CALLED_MAX)
  return refresh(counter, count > 0 and count or 1)
end

-- Look again at what was to be looked at later, by a clock that was ahead, and count what was spent as of now.
function limits.turn_back(now_ms)
  for _, limiter in ipairs(limits.all()) do
    limiters[limiter.field] = limiter
    if limiter.at > now_ms then changed_limiters[limiter.field] = true end
    meters.turn_back(limiter, now_ms)
    for _, key in ipairs(limits.is_each(limiter) and limiter.tokens and redis.call('HKEYS', store.gauges(limiter.number)) or {}) do
      local counter = counter_at({limiter = limiter, key = key, place = form.sortable(limiter.number) .. key})
      counter.is_changed = counter.is_changed or counter.at > now_ms
      meters.turn_back(counter, now_ms)
    end
  end
  local offset = 0
  repeat
    local page = redis.call('ZRANGEBYSCORE', store.looks, string.format('(%.0f', now_ms), '+inf', 'LIMIT', offset, 1000)
    for _, place in ipairs(page) do
      local limiter, key = limits.at(place)
      if limiter then
        local counter = counter_at({limiter = limiter, key = key, place = place})
        counter.look_ms, counter.is_changed = now_ms, true
      end
    end
    offset = offset + #page
  until #page == 0
end

-- Stop holding back by a limit: what was parked is offered again. Return its meters by gate, if each child has one.
local function retire(limiter)
  S[LIMITS] = S[LIMITS] - 1
  local looks, metered, stored = {}, {}, redis.call('HGETALL', store.gauges(limiter.number))
  for at = 1, #stored, 2 do
    local kept = cmsgpack.unpack(stored[at + 1])
    if kept[4] then looks[#looks + 1] = form.sortable(limiter.number) .. stored[at] end
    if kept[5] then metered[stored[at]] = {spent = kept[5], at = kept[6], log = kept[7] or nil} end
  end
  retired[limiter.number] = looks
  work.push({'u', -limiter.number})
  return metered
end

-- Begin to hold back, from what runs and what was spent.
local function measure(limiter, old, metered)
  S[PAUSE], S[LIMITS] = S[PAUSE] + 1, S[LIMITS] + 1
  limiter.number = S[PAUSE]
  local goes_on = limiter.tokens and old and old.tokens
  if goes_on then meters.go_on_from(limiter, limiter, old, old) end
  for _, member in ipairs(redis.call('ZRANGE', store.leases, 0, -1)) do
    local _, id = form.split(member, 2)
    local job = jobs.known(id, store.leases)
    for _, at in ipairs(job[STATE] == STARTED and limits.places(job) or {}) do
      if at.limiter == limiter then
        local counter = counter_at(at)
        counter.started, counter.is_changed = counter.started + meters.cost_of(job), true
      end
    end
  end
  -- Of very many children most are idle: what is kept of these is worked out here, without a counter.
  local before = form.sortable(limiter.number)
  for key, was in pairs(goes_on and metered or {}) do
    local place = before .. key
    local counter = counters[place]
    meters.go_on_from(counter or was, limiter, was, old)
    if counter then
      refresh(counter, 0)
    elseif was.spent > 0 then
      local free_ms = meters.free_ms(was, limiter)
      carried[place] = {key = key, packed = cmsgpack.pack({0, 0, 0, free_ms, was.spent, was.at, was.log}), look_ms = free_ms, number = limiter.number}
    end
  end
end

-- Put a limit in place of that of its field; return whether this changed anything, nil if there are too many limits.
function limits.set(field, most, tokens, per_ms, pending, burst)
  local old = limits.of(field)
  local was = old or {most = false, tokens = false, per_ms = false, burst = false, pending = false}
  local holds_back = most or tokens
  local is_measured_anew = was.most ~= most or was.tokens ~= tokens or was.per_ms ~= per_ms or was.burst ~= burst
  if not is_measured_anew and was.pending == pending then return false end
  if not old and redis.call('HLEN', store.limits) >= LIMITS_MAX then return nil end
  local change = (pending and 1 or 0) - (was.pending and 1 or 0)
  S[WATCHED] = S[WATCHED] + change
  local limiter = {field = field, number = 0, most = most, tokens = tokens, per_ms = per_ms, pending = pending, burst = burst, spent = 0, at = 0}
  if unfinished.is_of_selection(field) then
    -- While it counts, no plain path is taken (lib/plain/quiet).
    S[LIMITS] = S[LIMITS] + change
    if pending and was.pending then limiter.count, limiter.since = was.count, was.since
    elseif pending then limiter.count, limiter.since = unfinished.count_listed(field), S[NUMBERS] end
  end
  limiters[field] = (holds_back or pending) and limiter
  changed_limiters[field], places_known = true, {}
  if not is_measured_anew then
    if old then limiter.number, limiter.spent, limiter.at, limiter.log = old.number, old.spent, old.at, old.log end
    return true
  end
  local metered = old and old.number > 0 and retire(old)
  if holds_back then measure(limiter, old, metered) end
  return true
end

local function write_in_parts(write, key, entries)
  for from = 1, #entries, AT_ONCE_MAX do write(key, unpack(entries, from, math.min(from + AT_ONCE_MAX - 1, #entries))) end
end

local function set_gauges(key, ...) redis.call('HSET', key, ...) end
local function add_looks(key, ...) redis.call('ZADD', key, ...) end
local function drop_looks(key, ...) redis.call('ZREM', key, ...) end

function limits.write()
  for field in pairs(changed_limiters) do
    local limiter = limiters[field]
    if limiter then
      redis.call('HSET', store.limits, field,
        cmsgpack.pack({limiter.number, limiter.most, limiter.tokens, limiter.per_ms, limiter.pending, limiter.spent, limiter.at,
          limiter.burst, limiter.log or false, limiter.count, limiter.since}))
    else
      redis.call('HDEL', store.limits, field)
    end
  end
  for number, looks in pairs(retired) do
    write_in_parts(drop_looks, store.looks, looks)
    redis.call('UNLINK', store.gauges(number))
  end
  local looks, fields = {}, {}
  for place, idle in pairs(carried) do
    local of_limit, size = fields[idle.number] or {}, #looks
    local count = #of_limit
    fields[idle.number] = of_limit
    looks[size + 1], looks[size + 2], of_limit[count + 1], of_limit[count + 2] = string.format('%.0f', idle.look_ms), place, idle.key, idle.packed
  end
  for number, of_limit in pairs(fields) do write_in_parts(set_gauges, store.gauges(number), of_limit) end
  write_in_parts(add_looks, store.looks, looks)
  for place, counter in pairs(counters) do
    if counter.is_changed then
      if counter.started == 0 and counter.parked == 0 and not counter.look_ms then
        redis.call('HDEL', store.gauges(counter.limiter.number), counter.key)
      else
        local kept = {counter.started, counter.parked, counter.calls, counter.look_ms}
        if counter.limiter.tokens and counter.meter == counter then kept[5], kept[6], kept[7] = counter.spent, counter.at, counter.log end
        if counter.is_strict then kept[5], kept[6], kept[7], kept[8], kept[9] = kept[5] or 0, kept[6] or 0, kept[7] or false, counter.called or false, true end
        kept[10] = counter.called and counter.called_rank or nil
        redis.call('HSET', store.gauges(counter.limiter.number), counter.key, cmsgpack.pack(kept))
      end
      if counter.look_ms ~= counter.was_look_ms then
        if counter.look_ms then redis.call('ZADD', store.looks, counter.look_ms, place) else redis.call('ZREM', store.looks, place) end
      end
    end
  end
end
end)
