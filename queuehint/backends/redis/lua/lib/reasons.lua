--[[ reasons: what a job waits for, as core.answers tells it. ]]
-- @include paths
-- @include limits
local JOBS_NAMED_MAX, LOOKED_AT_MAX, POOL_SEEN_MS, SEEN_READ_MAX = 10, 1000, 60000, 10000 -- @const

local function is_seen(served)
  local seen_ms = tonumber(redis.call('ZSCORE', store.seen, served) or nil)
  return seen_ms and seen_ms >= NOW - POOL_SEEN_MS
end

-- Whether a worker has asked for a user's jobs in a pool lately.
local function is_served(pool, user) return is_seen(pool) or is_seen(pool .. '\0' .. user) end

-- How many jobs are ready, by pool, as a flat list; how many in all; and how many of them no worker has asked for lately.
local function count_ready()
  local sizes, all, unserved, seen = {}, 0, 0, {}
  local asked = redis.call('ZRANGEBYSCORE', store.seen, string.format('%.0f', NOW - POOL_SEEN_MS), '+inf', 'LIMIT', 0, SEEN_READ_MAX)
  for _, served in ipairs(asked) do seen[served] = true end
  local stored = redis.call('HGETALL', store.pools)
  for at = 1, #stored, 2 do
    local name, size = stored[at], cmsgpack.unpack(stored[at + 1])[1]
    sizes[at], sizes[at + 1], all = name, size, all + size
    if not seen[name] then unserved = unserved + size end
  end
  for _, served in ipairs(asked) do
    local pool = string.match(served, '^(%Z*)%z')
    local counts = pool and not seen[pool] and redis.call('HGET', store.users, served)
    if counts then unserved = unserved - cmsgpack.unpack(counts)[1] end
  end
  return sizes, all, unserved
end

-- The pause at or above one of a job's claims: the path's gate key, false if there is none.
local function paused_at(job)
  if S[PAUSED] == 0 then return false end
  for _, claim in ipairs(form.claims(job[CLAIMS])) do
    for _, key in ipairs(claim.keys) do
      if redis.call('HEXISTS', store.pauses, key) == 1 then return key end
    end
  end
  return false
end

-- Whether a job holds the gate at *depth*, *key*, in a mode that does not fit what another wants there.
local function holds_against(job, key, depth, wants)
  local walks = job[WALKS]
  for index, claim in ipairs(walks and form.claims(job[CLAIMS]) or {}) do
    if claim.keys[depth + 1] == key and walks[index] > depth then
      local held = {0, 0, 0, 0}
      held[gates.mode_at(claim, depth)] = 1
      if not gates.fits(held, wants) then return true end
    end
  end
  return false
end

-- Jobs that keep a waiting walk from passing its gate: holders whose mode does not fit, then those ahead in line.
-- Which ones of many are found is not promised.
local function in_the_way(job, index)
  local claim, depth = form.claims(job[CLAIMS])[index], job[WALKS][index]
  local key, wants = claim.keys[depth + 1], gates.mode_at(form.claims(job[CLAIMS])[index], depth)
  local found, ids = {}, {}
  local function add(other)
    if other.id ~= job.id and not ids[other.id] then
      ids[other.id] = true
      found[#found + 1] = other
    end
  end
  if not gates.fits(gates.of(key), wants) then
    for _, set in ipairs({store.holds, store.paths}) do
      local looked_at = 0
      for at, range in ipairs(paths.ranges(key)) do
        local walk, skipped = paths.walk(set, {range}, 1, false, 32), 0
        local member = walk.next()
        -- At the very path those that wait stand behind those that hold it.
        while member and #found < JOBS_NAMED_MAX and looked_at < LOOKED_AT_MAX and (at == 2 or key == '' or skipped < 32) do
          looked_at = looked_at + 1
          local _, _, id = paths.split(member)
          local other = jobs.known(id, set)
          if holds_against(other, key, depth, wants) then add(other) else skipped = skipped + 1 end
          member = walk.next()
        end
      end
    end
  end
  if #found < JOBS_NAMED_MAX then
    for _, member in ipairs(redis.call('ZRANGE', store.line(key), 0, JOBS_NAMED_MAX)) do
      local other = jobs.known(string.sub(member, 3), store.line(key))
      if other[SEQ] < job[SEQ] and #found < JOBS_NAMED_MAX then add(other) end
    end
  end
  table.sort(found, function(left, right) return left[SEQ] < right[SEQ] end)
  return found, key
end

local function reason_queued(job)
  for index, depth in ipairs(job[WALKS] or {}) do
    if depth < GRANTED then
      local ahead, key = in_the_way(job, index)
      local dead = {}
      for _, other in ipairs(ahead) do
        if other[STATE] == FAILED then dead[#dead + 1] = other end
      end
      local named = #dead > 0 and dead or ahead
      return {kind = #dead > 0 and 'dead_hold' or 'place', jobs = named, path = key, stuck = #dead > 0}
    end
  end
  if not job[OFFER] then
    local stranger = job[STRANGERS] > 0
    return {kind = stranger and 'unknown_task' or 'backoff', until_ms = job[DUE_AT], stuck = stranger}
  end
  local paused = paused_at(job)
  if paused then return {kind = 'paused', path = paused, stuck = true} end
  if form.is_place(job[OFFER]) then
    local meter, key = limits.at(job[OFFER])
    if meter then return {kind = 'limit', path = key} end
  end
  if job[PRESENCE] then return {kind = 'caller'} end
  local detail = 'pool ' .. job[POOL] .. (job[USER] ~= '' and ', user ' .. job[USER] or '')
  if not is_served(job[POOL], job[USER]) then return {kind = 'no_worker', stuck = true, detail = detail} end
  return {kind = 'worker', detail = detail}
end

local function reason_of(job)
  local state = job[STATE]
  if state == SCHEDULED then return {kind = 'time', until_ms = job[DUE_AT]} end
  if state == DEFERRED then
    local ids = redis.call('HKEYS', store.blocked(job.id))
    table.sort(ids, form.less)
    local named, dead = {}, {}
    for _, id in ipairs(ids) do
      -- One that is staged waits for what the commit brings, which nobody knows by name.
      if not jobs.is_start(id) then
        local other = jobs.of(id) or {id = id}
        named[#named + 1] = other
        if other[STATE] == FAILED then dead[#dead + 1] = other end
      end
    end
    local ahead, some = #dead > 0 and dead or named, {}
    for at = 1, math.min(#ahead, JOBS_NAMED_MAX) do some[at] = ahead[at] end
    return {kind = #dead > 0 and 'dead_dependency' or 'dependency', jobs = some, stuck = #dead > 0}
  end
  if state == STARTED then
    -- Whether it runs past its timeout is for the codec to say.
    return {kind = job[CANCEL] and 'overdue' or 'running', detail = string.format('worker %s, attempt %.0f', job[WORKER], job[ATTEMPTS])}
  end
  if state == QUEUED then return reason_queued(job) end
  return {kind = 'over', detail = job[CAUSE]}
end

local function text_of_ms(ms) return ms and string.format('%.0f', ms) or '' end

-- A reason as a flat list: what it says, then what the codec needs to tell a job that runs from one that is overdue.
local function reply_of(job, reason)
  local ids = {}
  for at, other in ipairs(reason.jobs or {}) do ids[at] = other.id end
  return {
    job.id, job[STATE], reason.kind, table.concat(ids, '\n'), reason.path and '/' .. reason.path or '',
    text_of_ms(reason.until_ms), reason.stuck and '1' or '0', reason.detail and '=' .. reason.detail or '',
    text_of_ms(job[STARTED_AT]), text_of_ms(NOW), redis.call('HGET', store.specs, job.id) or '',
  }
end
