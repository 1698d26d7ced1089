--[[ indexes: the data derived from heads. Counts, indexes, timers, lines and offers are functions of the heads: each head
  is compared with its value before this step, and the difference is written. ]]
local indexes = {}
local AT_ONCE, FIRST_CLAIM = 2000, '1' -- @const

lazily(indexes, function()
-- Changes of this step: additions to and removals from sorted sets, by set; heads, by id; fields to delete.
local added, removed, written, gone, dropped = {}, {}, {}, {}, {}

-- Call *write* with a key and any number of arguments, in parts, because Lua's stack takes only a few thousand.
local function in_parts(write, key, args)
  local count = #args
  if count <= AT_ONCE then
    write(key, unpack(args))
  else
    for from = 1, count, AT_ONCE do write(key, unpack(args, from, math.min(from + AT_ONCE - 1, count))) end
  end
end

local function put_in(set, ...) redis.call('ZADD', set, ...) end
local function take_out(set, ...) redis.call('ZREM', set, ...) end
local function set_fields(hash, ...) redis.call('HSET', hash, ...) end
local function drop_fields(hash, ...) redis.call('HDEL', hash, ...) end

function indexes.set_fields(hash, fields) in_parts(set_fields, hash, fields) end
function indexes.drop_fields(hash, fields) in_parts(drop_fields, hash, fields) end

local function add_entry(set, score, member)
  local list = added[set]
  if list then
    local size = #list
    list[size + 1], list[size + 2] = score, member
  else
    added[set] = {score, member}
  end
end

local function remove_entry(set, member)
  local list = removed[set]
  if list then list[#list + 1] = member else removed[set] = {member} end
end

local function drop_field(hash, id)
  local list = dropped[hash]
  if list then list[#list + 1] = id else dropped[hash] = {id} end
end

-- One entry of a sorted set before and after: false where there is none. A score is a text where it may be: a number
-- is made one at every call.
local function put(set, was, was_score, now, score)
  if was == now and was_score == score then return end
  if now then add_entry(set, score, now) end
  if was and was ~= now then remove_entry(set, was) end
end
indexes.put = put

-- Write what was put and taken, by one command a key: an id that is taken again is dropped before it is put.
function indexes.flush()
  if #gone > 0 then
    in_parts(drop_fields, store.jobs, gone)
    in_parts(drop_fields, store.asked, gone)
  end
  for hash, fields in pairs(dropped) do in_parts(drop_fields, hash, fields) end
  for set, members in pairs(removed) do in_parts(take_out, set, members) end
  for set, entries in pairs(added) do in_parts(put_in, set, entries) end
  if #written > 0 then in_parts(set_fields, store.jobs, written) end
  added, removed, written, gone, dropped = {}, {}, {}, {}, {}
end

local STAGED_LETTER = 'H' -- @const
local function count_state(job, by)
  local at = COUNT_OF[job[STATE]]
  if not job[GONE] and not jobs.is_hidden(job) then S[at] = S[at] + by end
  if job[STATE] == FAILED and job[WALKS] then S[HOLDING] = S[HOLDING] + by end
end

local function count_unknown_tasks(job, by)
  if job[UNKNOWN_TASKS] > 0 then S[UNKNOWN_TASKS_NOW] = S[UNKNOWN_TASKS_NOW] + by
  elseif job[BACKING_OFF] then S[BACKING_OFF_NOW] = S[BACKING_OFF_NOW] + by end
end

local function count_limited(job, by)
  if form.is_place(job[OFFER]) then S[LIMITED] = S[LIMITED] + by end
  if job[STAGED] and jobs.is_hidden(job) then S[HIDDEN] = S[HIDDEN] + by end
end

local function count_level(job, by)
  local level = job[SEQ] > 0 and (job[LEVEL] or job[PRIORITY])
  if level and level < CRITICAL then S[LEVELS + level] = S[LEVELS + level] + by end
end

local function count(was, job)
  if was then
    count_level(was, -1)
    if not job or was[STATE] ~= job[STATE] or job[ENDED] or was[STAGED] then count_state(was, -1) end
    count_unknown_tasks(was, -1)
    count_limited(was, -1)
    -- The edge to the start of a submission in parts does not count.
    if was[BLOCKED] > 0 then S[OPEN_EDGES] = S[OPEN_EDGES] - was[BLOCKED] + (was[STAGED] and 1 or 0) end
  end
  if job then
    count_level(job, 1)
    if not was or was[STATE] ~= job[STATE] or job[ENDED] or was[STAGED] then count_state(job, 1) end
    count_unknown_tasks(job, 1)
    count_limited(job, 1)
    if job[BLOCKED] > 0 then S[OPEN_EDGES] = S[OPEN_EDGES] + job[BLOCKED] - (job[STAGED] and 1 or 0) end
  end
end

local time_texts = {}

local function text_of(time_ms)
  local text = time_texts[time_ms]
  if not text then
    text = string.format('%d', time_ms)
    time_texts[time_ms] = text
  end
  return text
end

local SET_OF = {[DUE] = 'timers', [LEASE] = 'leases', [PRUNE] = 'prunes'}
local FIRST_OF = {[DUE] = NEXT_TIMER, [LEASE] = NEXT_LEASE, [PRUNE] = NEXT_PRUNE}

local function write_timers(was, job)
  local kind, was_kind = job and job[TIMER], was and was[TIMER]
  if was_kind and (was_kind ~= kind or job[TIMER_MS] ~= was[TIMER_MS]) then timers.see_taken(FIRST_OF[was_kind], was[TIMER_MS]) end
  if was_kind and was_kind ~= kind then remove_entry(store[SET_OF[was_kind]], timers.member(was_kind, was)) end
  if kind and (kind ~= was_kind or job[TIMER_MS] ~= was[TIMER_MS] or job[NUMBER] ~= was[NUMBER]) then
    if kind == was_kind and job[NUMBER] ~= was[NUMBER] then remove_entry(store[SET_OF[kind]], timers.member(kind, was)) end
    add_entry(store[SET_OF[kind]], text_of(job[TIMER_MS]), timers.member(kind, job))
    timers.see_put(FIRST_OF[kind], job[TIMER_MS])
  end
  local expiry, was_expiry = job and job[EXPIRY_MS], was and was[EXPIRY_MS]
  if expiry ~= was_expiry then
    if was_expiry then timers.see_taken(NEXT_TIMER, was_expiry) end
    if expiry then timers.see_put(NEXT_TIMER, expiry) end
    put(store.timers, was_expiry and timers.member(EXPIRY, was), was_expiry, expiry and timers.member(EXPIRY, job), expiry)
  end
end

-- Put a job into a set of paths, once a claim, or take it out.
local function change_path(set, gate_key, sortable, is_there)
  local member = paths.member(gate_key, sortable)
  if is_there then add_entry(set, '0', member) else remove_entry(set, member) end
end

local function change_paths(set, job, is_there)
  local claims, sortable = job[CLAIMS], form.sortable(job[NUMBER])
  if claims == '' then
    change_path(set, nil, sortable, is_there)
  elseif not string.find(claims, '\n', 1, true) then
    change_path(set, string.sub(claims, 2), sortable, is_there)
  else
    for claim_text in string.gmatch(claims, '[^\n]+') do change_path(set, string.sub(claim_text, 2), sortable, is_there) end
  end
end

local function write_paths(was, job)
  local there, was_there = job and not OVER[job[STATE]], was and not OVER[was[STATE]]
  local moved = there and was_there and job[CLAIMS] ~= was[CLAIMS]
  if was_there and (not there or moved) then change_paths(store.paths, was, false) end
  if there and (not was_there or moved) then change_paths(store.paths, job, true) end
  local past, was_past = job and OVER[job[STATE]] and not job[GONE], was and OVER[was[STATE]] and not was[GONE]
  if was_past and not past and was[CLAIMS] ~= '' then change_paths(store.past, was, false) end
  if past and not was_past and job[CLAIMS] ~= '' then change_paths(store.past, job, true) end
  local holds, was_holds = job and job[STATE] == FAILED and job[WALKS], was and was[STATE] == FAILED and was[WALKS]
  if was_holds and not holds then change_paths(store.holds, was, false) end
  if holds and not was_holds then change_paths(store.holds, job, true) end
  -- An ended job with an expiry keeps its key until then.
  local key, was_key = job and (there or job[EXPIRY_MS]) and job[KEY] or false, was and (was_there or was[EXPIRY_MS]) and was[KEY] or false
  if key ~= was_key then
    if was_key then remove_entry(store.keyed, was_key .. '\0' .. form.tag(was)) end
    if key then add_entry(store.keyed, '0', key .. '\0' .. form.tag(job)) end
  end
  local dead, was_dead = job and job[STATE] == FAILED and not job[GONE], was and was[STATE] == FAILED and not was[GONE]
  if dead and not was_dead then add_entry(store.dead, job[NUMBER], job.id) end
  if was_dead and not dead then remove_entry(store.dead, was.id) end
end

local function write_offers(was, job)
  local offer, was_offer = job and job[OFFER], was and was[OFFER]
  if not offer and not was_offer then return end
  put(store.ready, was_offer == 'r' and (job and job.ready_member or ready_queue.member(was)), '0',
    offer == 'r' and ready_queue.member(job), '0')
  put(store.parked, was_offer and was_offer ~= 'r' and sweeps.parked_member(was, was_offer), '0',
    offer and offer ~= 'r' and sweeps.parked_member(job, offer), '0')
end

local function line_entries(job)
  local entries = nil
  local walks = job and job[WALKS]
  if walks then
    local claims = nil
    for index = 1, #walks do
      if walks[index] < GRANTED then
        claims = claims or form.claims(job[CLAIMS])
        entries = entries or {}
        entries[string.char(BEFORE_CLAIM + index) .. job.id] = store.line(claims[index].keys[walks[index] + 1])
      end
    end
  end
  return entries
end

local function write_lines(was, job)
  local entries, was_entries = line_entries(job), line_entries(was)
  if was_entries then
    for member, key in pairs(was_entries) do
      if not entries or entries[member] ~= key then remove_entry(key, member) end
    end
  end
  if entries then
    for member, key in pairs(entries) do
      if not was_entries or was_entries[member] ~= key or was[SEQ] ~= job[SEQ] then
        add_entry(key, job[SEQ], member)
      end
    end
  end
end

local function defers(job) return job and job[STATE] == DEFERRED and not job[STAGED] and not jobs.is_start(job.id) end

-- A job among the jobs of its flow by state; one that waits for the commit of its submission by that.
local function state_member(job)
  local state = job[STAGED] and job[STATE] == DEFERRED and STAGED_LETTER .. job[STAGED] .. '\0' or job[STATE]
  return job[FLOW] .. '\0' .. state .. form.tag(job)
end

local function write_flow(was, job)
  local there, was_there = job and job[FLOW] and not job[GONE], was and was[FLOW] and not was[GONE]
  if (not there and not was_there) or jobs.is_start((job or was).id) then return end
  put(store.flow_jobs, was_there and was[FLOW] .. '\0' .. form.tag(was), '0', there and job[FLOW] .. '\0' .. form.tag(job), '0')
  put(store.flow_states, was_there and state_member(was), '0', there and state_member(job), '0')
end

local function write_edges(was, job)
  local deferred, was_deferred = defers(job), defers(was)
  put(store.deferred, was_deferred and was.id, was_deferred and was[NUMBER], deferred and job.id, deferred and job[NUMBER])
  local fallen, was_fallen = job and job[CANCELED_BY], was and was[CANCELED_BY]
  if fallen or was_fallen then
    put(store.fallen, was_fallen and was_fallen .. '\0' .. form.tag(was), '0', fallen and fallen .. '\0' .. form.tag(job), '0')
  end
end

local function write_notes(was, job, id)
  if was and not was[SHORT_SPEC] and not (job and not job[SHORT_SPEC]) then drop_field(store.specs, id) end
  if was and was[NEEDS] and not (job and job[NEEDS]) then
    for portion = 0, was[PORTIONS] or 0 do drop_field(store.needs, edges.field(id, portion)) end
  end
  if was and was[RESULT] == 's' and not (job and job[RESULT] == 's') then drop_field(store.results, id) end
  if was and was[REPORTED] and not (job and job[REPORTED]) then drop_field(store.progress, id) end
  if was and was[LOGS] > 0 and not (job and job[LOGS] > 0) then redis.call('UNLINK', store.log(id)) end
  if was and was[STEPS] > 0 and not (job and job[STEPS] > 0) then redis.call('UNLINK', store.steps(id)) end
  if was and was[ERRORS] > 0 and not (job and job[ERRORS] > 0) then redis.call('UNLINK', store.errors(id)) end
  local added = job and job[ERRORS] > 0 and transitions.errors_added[id]
  if added then
    redis.call('RPUSH', store.errors(id), unpack(added))
    redis.call('LTRIM', store.errors(id), -20, -1)
  end
end

-- Derive all changes of indexes from a job as it was, nil or false if it is new, and as it is now.
function indexes.derive(id, was, now)
  count(was, now)
  if S[WATCHED] > 0 and S[LIMITS] > 0 then limits.recount(was, now) end
  write_timers(was, now)
  -- A dead job may give up the place it held; all else about paths changes with the state, the claims or the key.
  if not was or not now or was[STATE] ~= now[STATE] or now[STATE] == FAILED or was[GONE] ~= now[GONE] or was[CLAIMS] ~= now[CLAIMS]
    or was[KEY] ~= now[KEY] or (now[KEY] and was[EXPIRY_MS] ~= now[EXPIRY_MS]) then
    write_paths(was, now)
  end
  write_offers(was, now)
  write_lines(was, now)
  write_flow(was, now)
  write_edges(was, now)
  write_notes(was, now, id)
end

-- The same for a plain job, as `indexes.derive` would do it: it has no timer but its lease and its end, no
-- offer but in the ready queue, one claim, and nothing else that an index is about. Before this step it was plain too, or not.
local function derive_plain(id, job)
  local state, packed, tag, claims = job[STATE], job.packed, form.tag(job), job[CLAIMS]
  local was_state = packed and string.sub(packed, 1, 1)
  local is_queued, was_queued = state == QUEUED, was_state == QUEUED
  if was_state ~= state then
    local number, level = job[NUMBER], job[PRIORITY]
    S[COUNT_OF[state]] = S[COUNT_OF[state]] + 1
    if was_state then
      S[COUNT_OF[was_state]] = S[COUNT_OF[was_state]] - 1
      record_index.move(was_state, state, number)
    else
      record_index.enter(id, job)
    end
    -- Those of a level are counted that have a place.
    if level < CRITICAL then
      local by = (state == FINISHED and 0 or 1) - (was_state and was_state ~= FINISHED and 1 or 0)
      S[LEVELS + level] = S[LEVELS + level] + by
    end
    if state == FINISHED or not was_state then
      if S[WATCHED] > 0 and S[LIMITS] > 0 and (was_state or state ~= FINISHED) then limits.count(job, was_state and -1 or 1) end
      local member = paths.member(claims ~= '' and string.sub(claims, 2), string.sub(tag, 1, -1 - #id))
      if state ~= FINISHED then
        add_entry(store.paths, '0', member)
      else
        if was_state then remove_entry(store.paths, member) end
        if claims ~= '' then add_entry(store.past, '0', member) end
      end
    end
  end
  if not is_queued and (was_state ~= state or state == STARTED) then
    local kind, time_ms = job[TIMER], job[TIMER_MS]
    add_entry(store[SET_OF[kind]], text_of(time_ms), kind .. tag)
    timers.see_put(FIRST_OF[kind], time_ms)
  end
  if was_state == STARTED then
    timers.stale[NEXT_LEASE] = true
    if state ~= STARTED then remove_entry(store.leases, LEASE .. tag) end
  end
  local depth, was_depth = is_queued and (job[WALKS] and job[WALKS][1] or GRANTED), was_queued and string.byte(packed, 2)
  if depth == was_depth then return end
  if depth and depth >= GRANTED then add_entry(store.ready, '0', ready_queue.member(job)) end
  if was_depth and was_depth >= GRANTED and not is_queued then remove_entry(store.ready, job.ready_member or ready_queue.member(job)) end
  local is_waiting, was_waiting = depth and depth < GRANTED, was_depth and was_depth < GRANTED
  if is_waiting or was_waiting then
    local keys = form.claims(claims)[1].keys
    if was_waiting then remove_entry(store.line(keys[was_depth + 1]), FIRST_CLAIM .. id) end
    if is_waiting then add_entry(store.line(keys[depth + 1]), job[SEQ], FIRST_CLAIM .. id) end
  end
end

-- The same for a plain job that had FINISHED before this step and is dropped: its end has left it a timer, a state, a path and
-- what is stored of it by id.
local function drop_plain(id, job)
  S[COUNT_OF[FINISHED]] = S[COUNT_OF[FINISHED]] - 1
  record_index.leave(job)
  timers.stale[NEXT_PRUNE] = true
  local claims, tag = job[CLAIMS], form.tag(job)
  remove_entry(store.prunes, PRUNE .. tag)
  if claims ~= '' then remove_entry(store.past, paths.member(string.sub(claims, 2), string.sub(tag, 1, -1 - #id))) end
  if not job[SHORT_SPEC] then drop_field(store.specs, id) end
  if job[RESULT] == 's' then drop_field(store.results, id) end
  gone[#gone + 1] = id
end

-- Write a head and everything derived from it.
function indexes.write(id, job)
  -- A new plain job is a record at once.
  if job.is_plain and not job.packed and not job.pruned then job.name = heads.name_in_step(job.facts) end
  local head = not job.pruned and heads.plain(job)
  if head then
    derive_plain(id, job)
  elseif job.pruned and job.is_plain and job[STATE] == FINISHED then
    return drop_plain(id, job)
  else
    local was, now = jobs.was(job), not job.pruned and job
    record_index.write(id, was, now)
    indexes.derive(id, was, now)
    if not now then
      gone[#gone + 1] = id
      return
    end
    head = heads.pack(job)
  end
  local size = #written
  written[size + 1], written[size + 2] = id, head
end
end)
