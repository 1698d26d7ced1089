#!lua
--[[ enqueue: admit a submission, all or nothing.
  ARGV[9] staged    str  the id shared by the parts of one submission, with "\n" for all but its first part; "" for a whole one
  ARGV[10] parent   str  the running job that makes these, "" for none; ARGV[11] its token
  ARGV[12] origin   str  the schedule that fires these (lib/structures/schedules), or, behind a line end, the path that is
                    closed with this one as its last (lib/jobs/closings), "" for neither
  ARGV[13] flow     str  the flow whose jobs these are, all of them or a part, "" for none; and its timeout_ms behind a line end
  ARGV[14..]        three for each job: a head (id, priority, pool, user, task, service and tags, key, on_conflict, delay_ms and, behind a space, its max_delay_ms, run_at_ms,
                    presence_ms, flow and parent, policy, and claims, one a line, "" for none), a spec (opaque), and the policies and the
                    id of each job it depends on, one a line
  Returns more, now, next, the first new number, and a line for each job: its state if it is new, with the next number;
  else id, number, state, created, presence token.
  Refuses DUPLICATE_JOB at, KEY_TAKEN at owner, PATH_CLOSED at claim depth, COST at claim depth most, UNKNOWN_DEPENDENCY at id, CYCLE at, LEASE_LOST,
    FLOW_GONE, FLOW_EXISTS, OTHER_FLOW, UNDER_WAY at retry_ms, SCHEDULE_CHANGED, NOT_LAST at, QUEUE_FULL at claim depth pending most retry_ms more (claim -1 for the namespace, -2
    for its task, -3 for its pool, retry_ms -1 for unknown, more 1 if work is due); nothing is changed.
  Mirrors core.producing and core.refusals   Cost O(depth) a claim, and what follows ]]
-- @include lib/plain/enqueue_one
-- @include lib/rules
-- @include lib/request/asked_again
-- @include lib/structures/flow_counts
args.count(13, 3)
local STAGED_KEPT_MS, STAGED_FRESH_MS = 600000, 5000 -- @const

local staged, parent_id, parent_token = args.like(9, '^[^\n]*\n?$'), ARGV[10], ARGV[11]
local is_further = string.sub(staged, -1) == '\n'
if is_further then staged = string.sub(staged, 1, -2) end
local flow, flow_timeout = ARGV[13], false
if flow ~= '' and string.find(flow, '\n', 1, true) then
  flow, flow_timeout = string.match(flow, '^(.-)\n(.*)$')
  flow_timeout = args.whole(flow_timeout, 13)
end
local firing, closing = false, false
if ARGV[12] ~= '' then
  if string.byte(ARGV[12]) == 10 then closing = closings.asked(ARGV[12]) else firing = schedules.firing(ARGV[12]) end
end
local asked, ids, has_edges = {}, {}, false
for at = 14, #ARGV, 3 do
  asked[#asked + 1] = parse_asked(at)
  if ARGV[at + 2] ~= '' then has_edges = true end
end
if closing and #asked ~= 1 then args.refuse('closing') end
if has_edges then
  for _, ask in ipairs(asked) do ids[ask[ID]] = true end
end
do
  local all_ids, all_claims = {}, {}
  for index, ask in ipairs(asked) do all_ids[index], all_claims[index] = ask[ID], ask[P_CLAIMS] end
  jobs.prefetch(all_ids)
  gates.prefetch(all_claims)
end

-- The job that has an id; one of another submission in parts is hidden, and returned behind a false.
local function existing_of(id)
  local job = jobs.of(id)
  if job and jobs.is_hidden(job) and job[STAGED] ~= staged then return false, job end
  -- A signal whose time to be kept is over may be given anew.
  if job and jobs.is_signal(id) and job[TIMER] == PRUNE and job[TIMER_MS] <= NOW and not edges.has_dependents(job) then return false end
  return job
end

-- The jobs of these ids that are hidden in other submissions.
local elsewhere = {}

local keyed = {}

-- The newest job that has a key, false if there is none.
local function newest(key)
  local found = false
  for _, some in ipairs({keyed[key] or {}, archive.restarted[key] or {}}) do
    for _, job in ipairs(some) do
      if jobs.has_key(job) and (not found or job[NUMBER] > found[NUMBER]) then found = job end
    end
  end
  local offset = 0
  while true do
    local member = redis.call('ZREVRANGEBYLEX', store.keyed, '(' .. key .. '\1', '[' .. key .. '\0', 'LIMIT', offset, 1)[1]
    if not member then return found end
    local _, id = form.split(member, #key + 2)
    local job = jobs.known(id, store.keyed)
    if jobs.has_key(job) then
      return found and found[NUMBER] > job[NUMBER] and found or job
    end
    offset = offset + 1
  end
end

local needs_asked = {}

-- The dependencies in a request: a list of {id, policy}.
local function needs_of(ask)
  local text = ask[P_NEEDS]
  local needs = needs_asked[text]
  if not needs then
    needs = {}
    for line in string.gmatch(text, '[^\n]+') do
      if not string.find(line, '^[dwcnf][dwcnf][dwcnf][k-] .') then args.refuse('needs') end
      needs[#needs + 1] = {string.sub(line, 6), string.sub(line, 1, 4)}
    end
    needs_asked[text] = needs
  end
  return needs
end

-- In how many ms a part may take a job that is hidden in another submission: nil at once, or the other one is older and
-- under way. So none waits in a circle, and of those that want the same jobs the oldest goes on.
local function turn_ms(job)
  local other, own = jobs.of(START_MARK .. job[STAGED]), jobs.of(START_MARK .. staged)
  if not other or OVER[other[STATE]] or not other[EXPIRY_MS] or own and own[NUMBER] < other[NUMBER] then return nil end
  local silent_ms = other[EXPIRY_MS] - STAGED_KEPT_MS + STAGED_FRESH_MS
  if NOW < silent_ms then return silent_ms - NOW end
end

-- Why the edges of a job cannot be made; nil if they can.
local function refused_edges(index, ask, seen)
  local above = {}
  for at, need in ipairs(needs_of(ask)) do
    local job = jobs.of(need[1])
    local is_there = job and (not jobs.is_hidden(job) or job[STAGED] == staged)
    -- A signal may be given later.
    if not jobs.is_signal(need[1]) and ((job and job[GONE]) or (not is_there and not ids[need[1]])) then
      return 'UNKNOWN_DEPENDENCY ' .. index - 1 .. ' ' .. need[1]
    end
    above[at] = need[1]
  end
  if parent_id ~= '' and edges.reaches(above, {[parent_id] = true}, seen) then return 'CYCLE ' .. index - 1 end
end

-- Why a job of these fields could never start: the first limit that it counts under that has less than its cost; nil if none.
local function costs_too_much(index, job)
  local cost = meters.cost_of(job)
  for _, at in ipairs(cost > 1 and limits.places(job) or {}) do
    if cost > meters.costs_max(at.limiter) then
      local claim_at, depth = string.byte(at.limiter.field) == 116 and -2 or -3, 0
      for other_at, claim in ipairs(form.claims(job[CLAIMS])) do
        for other_depth, key in ipairs(claim.keys) do
          if key == at.key then claim_at, depth = other_at - 1, other_depth - 1 end
        end
      end
      return 'COST ' .. table.concat({index - 1, claim_at, depth, string.format('%.0f', meters.costs_max(at.limiter))}, ' ')
    end
  end
end

-- Why the submission would leave too many jobs unfinished; nil if it would not.
local function too_many()
  local new, pending, keys = {}, {}, {}
  -- Count a job at a place, a field, against the limit of that field, or of another one, of each child of its gate.
  local function add(place, field, index, claim_at, depth)
    local limiter = limits.of(field)
    if not limiter or not limiter.pending then return nil end
    local by = field == place and field or field .. place
    new[by] = (new[by] or 0) + 1
    pending[place] = pending[place] or limits.count_pending(place)
    local too_many = pending[place] + new[by] - limiter.pending
    if too_many <= 0 then return nil end
    local retry_ms = unfinished.retry_after_ms(place, too_many)
    local told = {index, claim_at, depth, pending[place], limiter.pending, string.format('%d', retry_ms or -1), work.more() and 1 or 0}
    return 'QUEUE_FULL ' .. table.concat(told, ' ')
  end
  -- Make room for a job that is taken from another submission.
  local function leave(job, place, field)
    local limiter = limits.of(field)
    if not limiter or not limiter.pending or unfinished.is_of_selection(field) and not limits.counts(limiter, job) then return end
    local by = field == place and field or field .. place
    new[by] = (new[by] or 0) - 1
  end
  for _, job in ipairs(elsewhere) do
    local task, pool = 't' .. job[TASK], 'p' .. job[POOL]
    leave(job, '-', '-')
    leave(job, task, task)
    leave(job, pool, pool)
    for _, claim in ipairs(form.claims(job[CLAIMS])) do
      for depth, gate_key in ipairs(claim.keys) do
        local place, parent = '=' .. gate_key, claim.keys[depth - 1]
        leave(job, place, place)
        if parent then leave(job, place, '/' .. parent) end
      end
    end
  end
  for index, ask in ipairs(asked) do
    local key = ask[P_KEY]
    local found = key and newest(key)
    -- A signal is over as soon as it is there.
    if not existing_of(ask[ID]) and not jobs.is_signal(ask[ID]) and not (key and (keys[key] or (found and jobs.stands_for_key(found)))) then
      if key then keys[key] = true end
      local full = add('-', '-', index - 1, -1, 0)
      for claim_at, claim in ipairs(form.claims(ask[P_CLAIMS])) do
        for depth, gate_key in ipairs(claim.keys) do
          local place, parent = '=' .. gate_key, claim.keys[depth - 1]
          full = full or add(place, place, index - 1, claim_at - 1, depth - 1)
            or (parent and add(place, '/' .. parent, index - 1, claim_at - 1, depth - 1))
        end
      end
      local task, pool = 't' .. ask[P_TASK], 'p' .. ask[P_POOL]
      full = full or add(task, task, index - 1, -2, 0) or add(pool, pool, index - 1, -3, 0)
      if full then return full end
    end
  end
end

-- Why the submission cannot be enqueued whole; nil if it can.
local function refusal()
  local new_keys, seen = {}, {[0] = 0}
  if firing == nil then return 'SCHEDULE_CHANGED' end
  if parent_id ~= '' then
    local parent = jobs.of(parent_id)
    if not parent or parent[STATE] ~= STARTED or parent[TOKEN] ~= parent_token then return 'LEASE_LOST' end
  end
  if staged ~= '' then
    local start = jobs.of(START_MARK .. staged)
    if start and OVER[start[STATE]] or is_further and not start then return 'FLOW_GONE' end
    if start and #asked > 0 and (start[FLOW] or '') ~= asked[1][P_FLOW] then return 'OTHER_FLOW' end
  end
  for index, ask in ipairs(asked) do
    local existing, hidden = existing_of(ask[ID])
    local key = ask[P_KEY]
    if existing then
      if not is_asked_again(existing, ask) then
        return 'DUPLICATE_JOB ' .. index - 1
      end
      if closing and closings.last_at(closing.gate_key) ~= ask[ID] then return 'NOT_LAST ' .. index - 1 end
    else
      if hidden then
        local wait_ms = staged ~= '' and turn_ms(hidden)
        if wait_ms then return 'UNDER_WAY ' .. index - 1 .. ' ' .. wait_ms end
        elsewhere[#elsewhere + 1] = hidden
      end
      if S[CLOSED_PATHS] > 0 then
        for claim_at, claim in ipairs(form.claims(ask[P_CLAIMS])) do
          local is_own = false
          for depth, gate_key in ipairs(claim.keys) do
            is_own = is_own or (closing and gate_key == closing.gate_key)
            if not is_own and closings.last_at(gate_key) then
              return 'PATH_CLOSED ' .. index - 1 .. ' ' .. claim_at - 1 .. ' ' .. depth - 1
            end
          end
        end
      end
      if S[LIMITS] > 0 and ask[P_POLICY] ~= '' then
        local like = {[TASK] = ask[P_TASK], [POOL] = ask[P_POOL], [CLAIMS] = ask[P_CLAIMS], [POLICY] = ask[P_POLICY]}
        local refused = costs_too_much(index, like)
        if refused then return refused end
      end
      if key then
        if ask[CONFLICT] == 'reject' then
          local owner = newest(key)
          local owner_id = owner and owner.id or new_keys[key]
          if owner_id then return 'KEY_TAKEN ' .. index - 1 .. ' ' .. owner_id end
        end
        new_keys[key] = new_keys[key] or ask[ID]
      end
      if ask[P_NEEDS] ~= '' then
        local refused = refused_edges(index, ask, seen)
        if refused then return refused end
      end
    end
  end
  if flow ~= '' then
    -- A flow that is there with other jobs is another one; the same jobs again are the same flow.
    local there, kept = flow_counts.visible(flow), 0
    if there > 0 then
      for _, ask in ipairs(asked) do
        local existing = existing_of(ask[ID])
        if not existing then return 'FLOW_EXISTS' end
        if not existing[GONE] then kept = kept + 1 end
      end
      if staged == '' and kept < there then return 'FLOW_EXISTS' end
    end
  end
  if S[WATCHED] > 0 and not closing then return too_many() end
end

-- A new head: QUEUED, without a place.
local function make(id, ask)
  S[NUMBERS] = S[NUMBERS] + 1
  local job = heads.new(id, S[NUMBERS], heads.facts(ask[P_FACTS]), ask[P_CLAIMS])
  if ask[P_KEY] then job[KEY] = ask[P_KEY] end
  if ask[P_PRESENCE] then job[PRESENCE] = ask[P_PRESENCE] end
  if ask[P_FLOW] ~= '' then job[FLOW] = ask[P_FLOW] end
  if ask[P_PARENT] then job[MADE_BY] = ask[P_PARENT] end
  -- An id may be taken again in the very step in which it is pruned or dropped.
  if jobs.dirty[id] then jobs.buried[#jobs.buried + 1] = {id, jobs.dirty[id]} end
  jobs.all[id], jobs.dirty[id] = job, job
  -- Others of the submission, before it, depend on it.
  if has_edges and edges.coming[id] then job[AWAITED] = true end
  jobs.set_spec(job, ask[SPEC])
  return job
end

-- Take in a new job with its edges: SCHEDULED if it is due later, DEFERRED if it waits for others, else QUEUED; CANCELED if
-- what it depends on has ended so; of a submission in parts, DEFERRED and hidden.
local function admit(ask, after, start)
  local id, key, policy = ask[ID], ask[P_KEY], ask[P_POLICY]
  if start then
    local job = make(id, ask)
    job[STATE], job[STAGED], job[DELAYED], job[RUN_AT] = DEFERRED, staged, ask[P_DELAY], ask[P_RUN_AT]
    if ask[P_NEEDS] ~= '' then job[NEEDS], edges.told[id] = KNOWN, ask[P_NEEDS] end
    edges.add(job, start.id, START)
    return job
  end
  S[ENQUEUED_IN_ALL] = S[ENQUEUED_IN_ALL] + 1
  local needs, blocked, canceled_by, state, action = nil, {}, nil, nil, nil
  if ask[P_NEEDS] ~= '' then
    needs = needs_of(ask)
    blocked, canceled_by, state, action = lifecycle.evaluate(needs, ids)
  end
  local job = make(id, ask)
  if needs then job[NEEDS], edges.told[id] = KNOWN, ask[P_NEEDS] end
  if canceled_by then
    job[STATE] = DEFERRED
    event_log.note(job, 'enqueued', false)
    lifecycle.let_go(job)
    lifecycle.end_because_of(job, canceled_by, state, false, action)
    return job
  end
  if ask[P_TASK] == SIGNAL_TASK and #blocked == 0 then
    job.is_plain, job[STATE] = false, DEFERRED
    if jobs.is_signal(id) and redis.call('EXISTS', store.waiting(id)) == 1 then job[AWAITED] = true end
    event_log.note(job, 'enqueued', false)
    lifecycle.give(job)
    return job
  end
  if after then
    local is_named = false
    for _, need in ipairs(needs or {}) do is_named = is_named or need[1] == after.id end
    if not is_named then
      local all = {unpack(blocked)}
      all[#all + 1] = {after.id, AFTER}
      blocked = all
    end
  end
  if key then
    keyed[key] = keyed[key] or {}
    table.insert(keyed[key], job)
  end
  if needs or #blocked > 0 then transitions.bind(job, needs or {}, blocked) end
  if ask[P_DELAY] or ask[P_RUN_AT] or policy ~= '' then transitions.set_time(job, ask[P_DELAY], ask[P_RUN_AT], NOW) end
  if job[DUE_AT] then
    job[STATE] = SCHEDULED
    timers.set(job, DUE, job[DUE_AT])
  elseif #blocked > 0 then
    job[STATE] = DEFERRED
  else
    transitions.place(job)
  end
  event_log.note(job, 'enqueued', false)
  return job
end

-- The start of this submission in parts, which waits for its commit anew.
local function start_of()
  local id = START_MARK .. staged
  local start = jobs.of(id)
  if not start or start.pruned then
    start = staging.open_start(id, asked[1] and asked[1][P_FLOW] or '')
    start[AWAITED] = true
  end
  timers.set_expiry(start, NOW + STAGED_KEPT_MS)
  return start
end

-- Give a fresh job of a key its new content; with equal claims and no new time it keeps its place.
local function respec(job, ask)
  transitions.withdraw(job)
  timers.drop(job)
  keep_asked(job)
  if job[CLAIMS] ~= ask[P_CLAIMS] then
    gates.vacate(job)
    job[CLAIMS] = ask[P_CLAIMS]
  end
  job[PRIORITY], job[POOL], job[USER] = ask[P_PRIORITY], ask[P_POOL], ask[P_USER]
  job[TASK], job[SERVICE], job[POLICY] = ask[P_TASK], ask[P_SERVICE], ask[P_POLICY]
  heads.see_other_facts(job)
  if job[LEVEL] and job[LEVEL] <= job[PRIORITY] then job[LEVEL] = false end
  job[FLOW], job[MADE_BY] = ask[P_FLOW] ~= '' and ask[P_FLOW], ask[P_PARENT]
  jobs.set_spec(job, ask[SPEC])
  local delay_ms = ask[P_DELAY]
  -- The delays of a burst end some time after its first job came.
  if ask[P_MAX_DELAY] then delay_ms = math.min(delay_ms, job[ENQUEUED] + ask[P_MAX_DELAY] - NOW) end
  transitions.set_time(job, delay_ms, ask[P_RUN_AT], NOW)
  job[VERSION] = job[VERSION] + 1
  if job[DUE_AT] then
    gates.vacate(job)
    local old = job[STATE]
    transitions.become(job, SCHEDULED)
    event_log.note(job, 'scheduled', old)
    timers.set(job, DUE, job[DUE_AT])
  elseif job[BLOCKED] > 0 then
    local old = job[STATE]
    transitions.become(job, DEFERRED)
    event_log.note(job, 'deferred', old)
  elseif job[SEQ] == 0 then
    transitions.queue(job)
  else
    priority.see(job)
    if gates.has_all(job) then
      ready_queue.add(job)
    elseif priority.lowest() < priority.of(job) then
      priority.inherit(job)
    end
  end
end

local refused = refusal()
if refused then return redis.error_reply(refused) end
local start = staged ~= '' and start_of()
if closing and not existing_of(asked[1][ID]) then closings.begin(closing, asked[1][ID]) end
-- Jobs of another submission in parts are not visible yet: an enqueue of their ids is a new request, and that one is over.
for _, job in ipairs(elsewhere) do staging.take(job) end
work.follow()
for _, job in ipairs(elsewhere) do
  if jobs.of(job.id) == job then lifecycle.drop(job) end
end

local lines_out, first, last_id, made, waits = {}, S[NUMBERS] + 1, nil, {}, {}
for _, ask in ipairs(asked) do
  local existing, after, key = existing_of(ask[ID]), nil, ask[P_KEY]
  if not existing and key then
    local found = newest(key)
    if found then
      if jobs.stands_for_key(found) then
        existing = found
        if ask[CONFLICT] == 'replace' and jobs.is_fresh(found) then respec(found, ask) end
      elseif ask[CONFLICT] == 'after' then
        after = found
      end
    end
  end
  local job, token = existing, ''
  if existing then
    token = existing[PRESENCE] and existing[TOKEN] or ''
  else
    local is_of_signal = ask[P_TASK] == SIGNAL_TASK
    if is_of_signal and jobs.is_signal(ask[ID]) and jobs.of(ask[ID]) then lifecycle.delete(jobs.of(ask[ID])) end
    job = admit(ask, after, start)
    made[#made + 1] = job
    if is_of_signal and jobs.is_wait(job.id) then
      if parent_id ~= '' then transitions.hold(jobs.of(parent_id), {{job.id, AWAITED_AGAIN}}) else waits[#waits + 1] = job end
    end
    if job[PRESENCE] then
      job[TOKEN] = epoch.next_token()
      token = job[TOKEN]
      timers.set(job, LEASE, NOW + job[PRESENCE])
      epoch.see_lease(job[PRESENCE])
    end
  end
  if existing or token ~= '' then
    lines_out[#lines_out + 1] = string.format('%s %.0f %s %d %s', job.id, job[NUMBER], job[STATE], existing and 0 or 1, token)
  else
    lines_out[#lines_out + 1] = job[STATE]
  end
  last_id = job.id
end
if start then
  local in_order = true
  for _, job in ipairs(made) do
    for _, need in ipairs(job[NEEDS] and edges.needs_of(job) or {}) do
      -- The record of a dependency may have expired just now.
      local other = jobs.of(need[1])
      in_order = in_order and (not other or other[NUMBER] < job[NUMBER])
    end
  end
  for _, job in ipairs(made) do job[CAME] = in_order and job[NUMBER] or S[NUMBERS] end
else
  -- Those of jobs that there were before.
  for _, wait in ipairs(waits) do lifecycle.end_unawaited(wait) end
end
if flow ~= '' and not start and #made > 0 then
  staging.set_timeout(flow, flow_timeout)
end
if firing then schedules.fire(firing, last_id) end
-- Leftover work is left to other calls: a sleeping worker continues it.
request.leaves_work = true
return request.reply({first, table.concat(lines_out, '\n')})
