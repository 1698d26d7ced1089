--[[ write: write the plan: heads and gates with all derived data. Redis keeps what a script wrote before it failed, so
  commands that may be refused come first: a key made by another program may be of another type. ]]
local POOL_SEEN_MS, COMES_WITHIN_MS = 60000, 100 -- @const

do
local function write_gates()
  if not next(gates.dirty) then return end
  local kept, gone = {}, {}
  for key, gate in pairs(gates.dirty) do
    if gate.was then gate_format.note_length(key, gate.was, gate[WAITING]) end
    if gate[IS] == 0 and gate[IX] == 0 and gate[S_MODE] == 0 and gate[X_MODE] == 0 and gate[WAITING] == 0 and gate[TO_ADVANCE] == 0 then
      gone[#gone + 1] = key
    else
      local size = #kept
      kept[size + 1], kept[size + 2] = key, gate_format.pack(gate)
    end
  end
  if #kept > 0 then indexes.set_fields(store.gates, kept) end
  if #gone > 0 then indexes.drop_fields(store.gates, gone) end
end

-- Put texts of jobs into a hash, by id.
local function write_fields(hash, texts)
  if not next(texts) then return end
  local fields = {}
  for id, text in pairs(texts) do
    local size = #fields
    fields[size + 1], fields[size + 2] = id, text
  end
  indexes.set_fields(hash, fields)
end

-- A marker for those that serve some users only, as long as there are such workers.
local function write_marker(key, user)
  if user.size == 0 then
    if user.was_size > 0 then redis.call('UNLINK', store.user_wake(key)) end
  elseif (user.filled or user.claimed) and S[USERS_SEEN] >= NOW - POOL_SEEN_MS and redis.call('ZSCORE', store.seen, key) then
    redis.call('ZADD', store.user_wake(key), '0', '1')
  end
end

local function write_ready()
  local is_refused = false
  for name, pool in pairs(ready_queue.pools) do
    if pool.size ~= pool.was_size or pool.users ~= pool.was_users then
      if pool.size == 0 then redis.call('HDEL', store.pools, name)
      else redis.call('HSET', store.pools, name, cmsgpack.pack({pool.size, pool.users})) end
    end
    -- A worker that takes the marker and leaves work sets it again.
    if pool.refused_in then is_refused = true
    elseif pool.size > 0 and (pool.filled or pool.claimed) then
      redis.call('ZADD', store.pool_wake(name), '0', '1')
    elseif pool.size == 0 and pool.was_size > 0 then
      redis.call('UNLINK', store.pool_wake(name))
    end
  end
  for key, user in pairs(ready_queue.users) do
    if user.size ~= user.was_size or user.turn ~= user.was_turn or user.served ~= user.was_served then
      if user.size == 0 then redis.call('HDEL', store.users, key)
      else redis.call('HSET', store.users, key, cmsgpack.pack({user.size, user.turn, user.served > 0 and user.served or nil})) end
      if user.turn ~= user.was_turn then
        local prefix = user.pool.name .. '\0'
        indexes.put(store.turns, user.was_turn > 0 and prefix .. form.sortable(user.was_turn) .. user.name, '0',
          user.turn > 0 and prefix .. form.sortable(user.turn) .. user.name, '0')
      end
    end
    if S[USERS_SEEN] > 0 and not user.pool.refused_in then write_marker(key, user) end
  end
  if is_refused then ready_queue.write_refused() end
end

local function write_leftovers()
  if work.left_taken > 0 then redis.call('LTRIM', store.left, work.left_taken, -1) end
  for at = work.left_added_at, #work.left_added do redis.call('RPUSH', store.left, cmsgpack.pack(work.left_added[at])) end
  S[LEFT_STORED] = S[LEFT_STORED] - work.left_taken + #work.left_added - work.left_added_at + 1
end

-- Events are kept while there are subscribers: so many, and so many bytes as they count; the oldest go first.
local EVENTS_KEPT, EVENTS_BYTES_KEPT = 10000, 16777216 -- @const
local function write_events()
  local events = event_log.events
  if S[FOLLOWED] > 0 and S[FOLLOWED] < NOW then S[FOLLOWED], event_log.drops = 0, true end
  if event_log.drops then
    redis.call('UNLINK', store.events)
    S[EVENTS_BYTES] = 0
  end
  if #events == 0 then return end
  local count, gone = 0, 0
  for from = 1, #events, 1000 do count = redis.call('RPUSH', store.events, unpack(events, from, math.min(from + 999, #events))) end
  local bytes, over = S[EVENTS_BYTES] + event_log.bytes, count - EVENTS_KEPT
  while gone < count and (gone < over or bytes > EVENTS_BYTES_KEPT) do
    for _, text in ipairs(redis.call('LRANGE', store.events, gone, math.max(gone, math.min(over, gone + 1000) - 1))) do
      bytes, gone = bytes - tonumber(string.match(text, '^%d+')), gone + 1
    end
  end
  if gone > 0 then redis.call('LTRIM', store.events, gone, -1) end
  S[EVENTS_BYTES] = bytes
end

local function write_told()
  for worker in pairs(transitions.lost_workers) do redis.call('HDEL', store.workers, worker) end
  for worker, list in pairs(transitions.undelivered) do
    if list.changed then
      if #list.ids == 0 then
        if list.stored then redis.call('HDEL', store.untold, worker) end
      else
        redis.call('HSET', store.untold, worker, cmsgpack.pack(list.ids))
        if list.wake then
          redis.call('ZADD', store.session_wake(worker), 0, '')
          redis.call('ZADD', store.sessions, NOW, worker)
        end
      end
    end
  end
  for _, job in ipairs(transitions.ended) do
    for _, session in ipairs(job[WATCHERS] or {}) do
      -- A waiting session sends a request every few seconds; a silent one gets no marker.
      session = form.session(session)
      if redis.call('ZSCORE', store.sessions, session) then redis.call('ZADD', store.session_wake(session), 0, job.id) end
    end
    -- An empty list is left: while memory is short, it shows that the result had waiters.
    if job[WATCHERS] then job[WATCHERS] = {} end
  end
end

-- Wake those that wait for each change of a job.
local function tell_change(id, job)
  local was = jobs.was(job)
  if was and was[VERSION] == job[VERSION] then return end
  for _, watcher in ipairs(job[WATCHERS]) do
    local session = form.session(watcher)
    if session ~= watcher and redis.call('ZSCORE', store.sessions, session) then
      redis.call('ZADD', store.session_wake(session), 0, '~' .. id)
    end
  end
end

-- Read, by a command of their types, the keys that no check at the start could see.
local function see_types()
  local is_refused = false
  for key, line in pairs(gates.lines) do
    -- One that was read is known to be a line.
    if line.offset == 0 then redis.call('ZCARD', store.line(key)) end
  end
  for name, pool in pairs(ready_queue.pools) do
    if pool.refused_in then is_refused = true else redis.call('ZCARD', store.pool_wake(name)) end
  end
  if is_refused then
    for _, marker in ipairs(ready_queue.markers(workers)) do redis.call('ZCARD', store.release_wake(marker)) end
  end
  if S[USERS_SEEN] > 0 then
    for key in pairs(ready_queue.users) do redis.call('ZCARD', store.user_wake(key)) end
  end
  for worker, list in pairs(transitions.undelivered) do
    if list.wake then redis.call('ZCARD', store.session_wake(worker)) end
  end
  for _, job in ipairs(transitions.ended) do
    for _, session in ipairs(job[WATCHERS] or {}) do redis.call('ZCARD', store.session_wake(form.session(session))) end
  end
  for _, job in pairs(jobs.dirty) do
    local watchers = not job.is_plain and job[WATCHERS]
    for at = 1, watchers and #watchers or 0 do
      local watcher = watchers[at]
      if form.session(watcher) ~= watcher then redis.call('ZCARD', store.session_wake(form.session(watcher))) end
    end
  end
  for id in pairs(transitions.errors_added) do redis.call('LLEN', store.errors(id)) end
  for id in pairs(plan.logs) do redis.call('LLEN', store.log(id)) end
  if rawget(edges, 'see_types') then edges.see_types() end
end

-- Replace specs of dropped records by digests, which suffice to recognise a repeated request.
local function shorten_specs()
  local ids, long = {}, {}
  for id in pairs(jobs.forgotten) do
    -- Its id may have gone in this very step, or have been taken again.
    local job = jobs.all[id]
    if job and job[GONE] then
      ids[#ids + 1] = id
      if not job[SHORT_SPEC] then long[#long + 1] = id end
    end
  end
  if #ids == 0 then return end
  local stored, last = #long > 0 and redis.call('HMGET', store.specs, unpack(long)) or {}, 0
  local asked = redis.call('HLEN', store.asked) > 0 and redis.call('HMGET', store.asked, unpack(ids)) or {}
  for at, id in ipairs(ids) do
    local spec, least = jobs.all[id][SHORT_SPEC], jobs.forgotten[id]
    if not spec then
      last = last + 1
      spec = stored[last]
    end
    if spec and #spec - (string.find(spec, '\n', 1, true) or 0) > least then jobs.set_spec(jobs.all[id], jobs.digested(spec)) end
    if asked[at] and #asked[at] > least then plan.asked[id] = jobs.digest(asked[at]) end
  end
end

-- Write all that was planned. Returns when something is due next, -1 never.
-- One that sleeps is woken when something is due before the time it was told.
function plan.commit(tells)
  see_types()
  if next(jobs.forgotten) then shorten_specs() end
  for key, gate in pairs(gates.dirty) do
    if gate[IS] < 0 or gate[IX] < 0 or gate[S_MODE] < 0 or gate[X_MODE] < 0 or gate[WAITING] < 0 then
      corrupt('the gate at ' .. form.queue_key(key) .. ' is counted below zero in ' .. store.gates)
    end
  end
  if next(jobs.dirty) or jobs.buried[1] or next(gates.dirty) then S[CHANGES] = S[CHANGES] + 1 end
  write_told()
  if rawget(edges, 'write') then edges.write() end
  for _, buried in ipairs(jobs.buried) do indexes.write(buried[1], buried[2]) end
  for id, job in pairs(jobs.dirty) do
    if not job.is_plain and job[WATCHERS] then tell_change(id, job) end
    indexes.write(id, job)
  end
  write_ready()
  if rawget(indexes, 'flush') then indexes.flush() end
  if rawget(record_index, 'flush') then record_index.flush() end
  write_gates()
  write_leftovers()
  write_events()
  write_fields(store.specs, jobs.specs)
  -- With no retention, a record may have ended in the very step that brought its result.
  local results = {}
  for id, result in pairs(plan.results) do
    if jobs.all[id] and jobs.all[id][RESULT] == 's' then results[id] = result end
  end
  write_fields(store.results, results)
  write_fields(store.progress, plan.progress)
  write_fields(store.needs, edges.told)
  write_fields(store.asked, plan.asked)
  for _, value in ipairs(work.shared_put) do
    redis.call('HSET', store.shared, value[1], value[2])
    redis.call('ZADD', store.shared_ends, value[3], value[1])
    -- Tallies, which are of no namespace that a user can name, are not listed.
    if string.byte(value[1]) ~= 0 then redis.call('ZADD', store.shared_names, 0, value[1]) end
  end
  for _, place in ipairs(work.shared_gone) do
    redis.call('HDEL', store.shared, place)
    redis.call('ZREM', store.shared_ends, place)
    redis.call('ZREM', store.shared_names, place)
  end
  if #work.shared_put + #work.shared_gone > 0 then
    S[NEXT_SHARED] = tonumber(redis.call('ZRANGE', store.shared_ends, 0, 0, 'WITHSCORES')[2]) or -1
  end
  for id, logged in pairs(plan.logs) do
    for from = 1, #logged, 1000 do redis.call('RPUSH', store.log(id), unpack(logged, from, math.min(from + 999, #logged))) end
    redis.call('LTRIM', store.log(id), -1000, -1)
  end
  if rawget(schedules, 'write') then schedules.write() end
  if rawget(limits, 'write') then limits.write() end
  if rawget(closings, 'write') then closings.write() end
  if rawget(pauses, 'write') then pauses.write(timers) end
  local next_ms, due_ms = timers.next_ms()
  next_ms = next_ms or -1
  -- A worker that exchanges may sleep already, as long as it was told to before. Leases are looked at every few seconds.
  local news_ms = tells and due_ms or not tells and next_ms >= 0 and next_ms
  -- The worker that was told a time may be gone once it is over. One that exchanges then may be that worker, unless it is late.
  local told_ms = S[TOLD_NEXT]
  if news_ms and (told_ms < 0 or news_ms < told_ms or told_ms < NOW - (tells and COMES_WITHIN_MS or 0)) then
    redis.call('ZADD', store['wake:timer'], '0', '1')
    tells = true
  end
  if tells then S[TOLD_NEXT] = next_ms end
  redis.call('HSET', store.meta, 'state', pack_state(S))
  return next_ms
end
end
