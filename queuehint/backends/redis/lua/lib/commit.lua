--[[ commit: write what was planned. First every key that will be written is touched, for a slot that is being moved
  refuses here, while nothing is written; then heads and gates go out with all that follows from them. Indexes, timers,
  lines and offers are functions of the heads: what a head said before and says now is compared. ]]
local new_specs, new_results, new_progress, new_asked, new_logs = {}, {}, {}, {}, {}

local commit

do
local function count_state(job, by)
  local at = COUNT_OF[job[STATE]]
  if not job[GONE] then S[at] = S[at] + by end
  if job[STATE] == FAILED and job[WALKS] then S[HOLDING] = S[HOLDING] + by end
end

local function count_strangers(job, by)
  if job[STRANGERS] > 0 then S[STRANGERS_NOW] = S[STRANGERS_NOW] + by
  elseif job[BACKING_OFF] then S[BACKING_OFF_NOW] = S[BACKING_OFF_NOW] + by end
end

local function count(was, job)
  if was then
    if not job or was[STATE] ~= job[STATE] or job[ENDED] then count_state(was, -1) end
    count_strangers(was, -1)
  end
  if job then
    if not was or was[STATE] ~= job[STATE] or job[ENDED] then count_state(job, 1) end
    count_strangers(job, 1)
  end
end

-- One entry of a sorted set before and after: false where there is none.
local function put(set, was, was_score, now, score)
  if was == now and was_score == score then return end
  if now then redis.call('ZADD', set, score, now) end
  if was and was ~= now then redis.call('ZREM', set, was) end
end

local SET_OF = {[DUE] = TIMERS, [LEASE] = LEASES, [PRUNE] = PRUNES}

local function write_timers(was, job)
  local kind, was_kind = job and job[TIMER], was and was[TIMER]
  if was_kind and was_kind ~= kind then redis.call('ZREM', SET_OF[was_kind], timer_member(was_kind, was)) end
  if kind and (kind ~= was_kind or job[TIMER_MS] ~= was[TIMER_MS] or job[NUMBER] ~= was[NUMBER]) then
    if kind == was_kind and job[NUMBER] ~= was[NUMBER] then redis.call('ZREM', SET_OF[kind], timer_member(kind, was)) end
    redis.call('ZADD', SET_OF[kind], job[TIMER_MS], timer_member(kind, job))
  end
  local expiry, was_expiry = job and job[EXPIRY_MS], was and was[EXPIRY_MS]
  if expiry ~= was_expiry then
    put(TIMERS, was_expiry and timer_member(EXPIRY, was), was_expiry, expiry and timer_member(EXPIRY, job), expiry)
  end
end

local function each_path(job, act)
  if job[CLAIMS] == '' then return act(path_member(nil, job)) end
  for claim_text in string.gmatch(job[CLAIMS], '[^\n]+') do act(path_member(string.sub(claim_text, 2), job)) end
end

local function write_paths(was, job)
  local there, was_there = job and not OVER[job[STATE]], was and not OVER[was[STATE]]
  local moved = there and was_there and job[CLAIMS] ~= was[CLAIMS]
  if was_there and (not there or moved) then each_path(was, function(member) redis.call('ZREM', PATHS, member) end) end
  if there and (not was_there or moved) then each_path(job, function(member) redis.call('ZADD', PATHS, 0, member) end) end
  local holds, was_holds = job and job[STATE] == FAILED and job[WALKS], was and was[STATE] == FAILED and was[WALKS]
  if was_holds and not holds then each_path(was, function(member) redis.call('ZREM', HOLDS, member) end) end
  if holds and not was_holds then each_path(job, function(member) redis.call('ZADD', HOLDS, 0, member) end) end
  local key, was_key = there and job[KEY] or false, was_there and was[KEY] or false
  if key ~= was_key then
    if was_key then redis.call('ZREM', KEYED, was_key .. '\0' .. tag_of(was)) end
    if key then redis.call('ZADD', KEYED, 0, key .. '\0' .. tag_of(job)) end
  end
  local dead, was_dead = job and job[STATE] == FAILED and not job[GONE], was and was[STATE] == FAILED and not was[GONE]
  if dead and not was_dead then redis.call('ZADD', DEAD, job[NUMBER], job.id) end
  if was_dead and not dead then redis.call('ZREM', DEAD, was.id) end
end

local function write_offers(was, job)
  local offer, was_offer = job and job[OFFER], was and was[OFFER]
  if not offer and not was_offer then return end
  put(READY, was_offer == 'r' and (job and job.ready_member or ready_member(was)), 0, offer == 'r' and ready_member(job), 0)
  put(PARKED, was_offer and was_offer ~= 'r' and parked_member(was, was_offer), 0,
    offer and offer ~= 'r' and parked_member(job, offer), 0)
end

local function line_entries(job)
  local entries = nil
  local walks = job and job[WALKS]
  if walks then
    local claims = nil
    for index = 1, #walks do
      if walks[index] < GRANTED then
        claims = claims or parse_claims(job[CLAIMS])
        entries = entries or {}
        entries[string.format('%02d', index) .. job.id] = line_key(claims[index].keys[walks[index] + 1])
      end
    end
  end
  return entries
end

local function write_lines(was, job)
  local entries, was_entries = line_entries(job), line_entries(was)
  if was_entries then
    for member, key in pairs(was_entries) do
      if not entries or entries[member] ~= key then redis.call('ZREM', key, member) end
    end
  end
  if entries then
    for member, key in pairs(entries) do
      if not was_entries or was_entries[member] ~= key or was[SEQ] ~= job[SEQ] then
        redis.call('ZADD', key, job[SEQ], member)
      end
    end
  end
end

local function write_notes(was, job, id)
  if was and was[RESULT] == 's' and not (job and job[RESULT] == 's') then redis.call('HDEL', RESULTS, id) end
  if was and was[REPORTED] and not (job and job[REPORTED]) then redis.call('HDEL', PROGRESS, id) end
  if was and was[LOGS] > 0 and not (job and job[LOGS] > 0) then redis.call('UNLINK', log_key(id)) end
  if was and was[ERRORS] > 0 and not (job and job[ERRORS] > 0) then redis.call('UNLINK', errors_key(id)) end
  local added = job and job[ERRORS] > 0 and errors_added[id]
  if added then
    redis.call('RPUSH', errors_key(id), unpack(added))
    redis.call('LTRIM', errors_key(id), -20, -1)
  end
end

-- Leave out what a head does not say at its end.
local function packed_head(job)
  local last = FIELDS
  -- From LOSSES on a number is a count; before, it is a time.
  while last > CLAIMS and (not job[last] or (job[last] == 0 and last >= LOSSES)) do
    job[last] = nil
    last = last - 1
  end
  job.id, job.was, job.reborn, job.ready_member = nil, nil, nil, nil
  return cmsgpack.pack(job)
end

local function write_job(id, job)
  local was = job.was
  local now = not job.pruned and job
  count(was, now)
  write_timers(was, now)
  -- A dead job may give up the place it held; all else about paths changes with the state, the claims or the key.
  if not was or not now or was[STATE] ~= now[STATE] or now[STATE] == FAILED or was[CLAIMS] ~= now[CLAIMS]
    or was[KEY] ~= now[KEY] then
    write_paths(was, now)
  end
  write_offers(was, now)
  write_lines(was, now)
  write_notes(was, now, id)
  if now then
    if job.reborn then redis.call('HDEL', ASKED, id) end
    redis.call('HSET', JOBS, id, packed_head(job))
  else
    redis.call('HDEL', JOBS, id)
    redis.call('HDEL', SPECS, id)
    redis.call('HDEL', ASKED, id)
  end
end

local function write_gates()
  for key, gate in pairs(dirty_gates) do
    if math.max(gate[IS], gate[IX], gate[S_MODE], gate[X_MODE], gate[WAITING], gate[TO_ADVANCE]) == 0 then redis.call('HDEL', GATES, key) else redis.call('HSET', GATES, key, cmsgpack.pack(gate)) end
  end
end

local function write_ready()
  for name, pool in pairs(pools) do
    if pool.size ~= pool.was_size or pool.users ~= pool.was_users then
      if pool.size == 0 then redis.call('HDEL', POOLS, name)
      else redis.call('HSET', POOLS, name, cmsgpack.pack({pool.size, pool.users})) end
    end
    -- Who takes the marker and leaves work sets it again.
    if pool.size > 0 and (pool.filled or pool.claimed) then
      redis.call('ZADD', pool_wake_key(name), 0, '1')
    elseif pool.size == 0 and pool.was_size > 0 then
      redis.call('UNLINK', pool_wake_key(name))
    end
  end
  for key, user in pairs(users) do
    if user.size ~= user.was_size or user.turn ~= user.was_turn then
      if user.size == 0 then redis.call('HDEL', USERS, key)
      else redis.call('HSET', USERS, key, cmsgpack.pack({user.size, user.turn})) end
      local prefix = user.pool.name .. '\0'
      put(TURNS, user.was_turn > 0 and prefix .. sortable(user.was_turn) .. user.name, 0,
        user.turn > 0 and prefix .. sortable(user.turn) .. user.name, 0)
    end
  end
end

local function write_leftovers()
  if left_taken > 0 then redis.call('LTRIM', LEFT, left_taken, -1) end
  for at = left_added_at, #left_added do redis.call('RPUSH', LEFT, cmsgpack.pack(left_added[at])) end
end

local function write_told()
  for worker, list in pairs(untold) do
    if list.changed then
      if #list.ids == 0 then
        if list.stored then redis.call('HDEL', UNTOLD, worker) end
      else
        redis.call('HSET', UNTOLD, worker, cmsgpack.pack(list.ids))
        if list.wake then
          redis.call('ZADD', session_wake_key(worker), 0, '')
          redis.call('ZADD', SESSIONS, NOW, worker)
        end
      end
    end
  end
  for _, job in ipairs(ended) do
    for _, session in ipairs(job[WATCHERS] or {}) do
      -- Who waits is heard of every few seconds.
      if redis.call('ZSCORE', SESSIONS, session) then redis.call('ZADD', session_wake_key(session), 0, job.id) end
    end
    job[WATCHERS] = false
  end
end

local function touch()
  local keys = {META, AUDIT, JOBS, SPECS, RESULTS, PROGRESS, ASKED, GATES, PATHS, HOLDS, CLOSED, TIMERS, LEASES, PRUNES, LEFT,
    READY, POOLS, USERS, TURNS, PARKED, PAUSES, DEAD, KEYED, SEEN, SESSIONS, RECEIPTS, UNTOLD, TIMER_WAKE}
  local function add(key)
    keys[#keys + 1] = key
    if #keys >= 4000 then
      redis.call('EXISTS', unpack(keys))
      keys = {}
    end
  end
  for key in pairs(lines) do add(line_key(key)) end
  for name in pairs(pools) do add(pool_wake_key(name)) end
  for worker, list in pairs(untold) do
    if list.wake then add(session_wake_key(worker)) end
  end
  for _, job in ipairs(ended) do
    for _, session in ipairs(job[WATCHERS] or {}) do add(session_wake_key(session)) end
  end
  for id, job in pairs(dirty) do
    if job[LOGS] > 0 or new_logs[id] then add(log_key(id)) end
    if job[ERRORS] > 0 or job.pruned then add(errors_key(id)) end
  end
  edge_keys(add)
  if #keys > 0 then redis.call('EXISTS', unpack(keys)) end
end

-- Write all that was planned. Returns when something is due next, -1 never.
-- A worker that was told wakes by itself; one that sleeps is woken when something is due before the time it was told.
function commit(tells)
  if ON_CLUSTER then touch() end
  for key, gate in pairs(dirty_gates) do
    if math.min(gate[IS], gate[IX], gate[S_MODE], gate[X_MODE], gate[WAITING]) < 0 then
      corrupt('the gate at ' .. queue_key(key) .. ' is counted below zero in ' .. GATES)
    end
  end
  write_told()
  write_edges()
  for id, job in pairs(dirty) do write_job(id, job) end
  write_gates()
  write_ready()
  write_leftovers()
  for id, spec in pairs(new_specs) do redis.call('HSET', SPECS, id, spec) end
  -- With no retention, a record may have ended in the very step that brought its result.
  for id, result in pairs(new_results) do
    if jobs[id] and jobs[id][RESULT] == 's' then redis.call('HSET', RESULTS, id, result) end
  end
  for id, progress in pairs(new_progress) do redis.call('HSET', PROGRESS, id, progress) end
  for id, asked in pairs(new_asked) do redis.call('HSET', ASKED, id, asked) end
  for id, logged in pairs(new_logs) do
    for from = 1, #logged, 1000 do redis.call('RPUSH', log_key(id), unpack(logged, from, math.min(from + 999, #logged))) end
    redis.call('LTRIM', log_key(id), -1000, -1)
  end
  local next_ms = next_timer_ms() or -1
  if next_ms >= 0 and not tells and (S[TOLD_NEXT] < 0 or next_ms < S[TOLD_NEXT]) then
    redis.call('ZADD', TIMER_WAKE, 0, '1')
    tells = true
  end
  if tells then S[TOLD_NEXT] = next_ms end
  redis.call('HSET', META, 'state', cmsgpack.pack(S))
  return next_ms
end
end
