--[[ reasons: reasons why a job waits; mirrors core.asking.why and core.asking.blockers. ]]
-- @include lib/structures/pauses
-- @include lib/structures/paths
-- @include lib/structures/limits
-- @include lib/structures/edges
-- @include lib/asking/workers
local JOBS_NAMED_MAX, POOL_SEEN_MS, SEEN_READ_MAX = 10, 60000, 10000 -- @const
local LINE_LOOKED_AT_MAX, DEAD_LOOKED_AT_MAX, HOLDERS_LOOKED_AT_MAX, ENTRIES_LOOKED_AT_MAX = 100, 1000, 1000, 5000 -- @const
local PASSED_OVER_MAX = 16 -- @const

local function is_seen(served)
  local seen_ms = tonumber(redis.call('ZSCORE', store.seen, served) or nil)
  return seen_ms and seen_ms >= NOW - POOL_SEEN_MS
end

-- Whether a worker has asked for a user's jobs in a pool lately.
local function is_served(pool, user) return is_seen(pool) or is_seen(pool .. '\0' .. user) end

-- Return whether live workers whose releases have not refused the jobs of a queue run all of them; if not, whose they run.
local function untried(queue, pool)
  local releases, users = ',' .. string.sub(queue, #pool + 2) .. ',', {}
  for _, told in ipairs(workers.releases(pool)) do
    if told[1] == '' or not string.find(releases, ',' .. told[1] .. ',', 1, true) then
      if not told[2] then return true, users end
      for _, user in ipairs(told[2]) do users[user] = true end
    end
  end
  return false, users
end

-- Return how many jobs are ready, by pool, as a flat list; how many in all; how many of them no worker has asked for lately; and
-- how many others the releases of all workers have refused.
local function count_ready()
  local sizes, all, unserved, seen, by_pool, refused = {}, 0, 0, {}, {}, 0
  local asked = redis.call('ZRANGEBYSCORE', store.seen, string.format('%.0f', NOW - POOL_SEEN_MS), '+inf', 'LIMIT', 0, SEEN_READ_MAX)
  for _, served in ipairs(asked) do seen[served] = true end
  local stored = redis.call('HGETALL', store.pools)
  for at = 1, #stored, 2 do
    local name, size = stored[at], cmsgpack.unpack(stored[at + 1])[1]
    local pool = string.match(name, '^[^\1]*')
    by_pool[pool], all = (by_pool[pool] or 0) + size, all + size
    if name ~= pool then
      local is_everyone, users = untried(name, pool)
      refused = refused + (is_everyone and 0 or size)
      for user in pairs(is_everyone and {} or users) do
        local counts = redis.call('HGET', store.users, name .. '\0' .. user)
        refused = refused - (counts and cmsgpack.unpack(counts)[1] or 0)
      end
    elseif not seen[name] then
      unserved = unserved + size
    end
  end
  for pool, size in pairs(by_pool) do sizes[#sizes + 1], sizes[#sizes + 2] = pool, size end
  for _, served in ipairs(asked) do
    local pool = string.match(served, '^(%Z*)%z')
    local counts = pool and not seen[pool] and redis.call('HGET', store.users, served)
    if counts then unserved = unserved - cmsgpack.unpack(counts)[1] end
  end
  return sizes, all, unserved, refused
end

-- How many walks of a job hold the gate at *depth*, *key*, in a mode that one of *wants* does not fit.
local function count_against(job, key, depth, wants)
  local walks, count = job[WALKS], 0
  for index, claim in ipairs(walks and form.claims(job[CLAIMS]) or {}) do
    if claim.keys[depth + 1] == key and walks[index] > depth then
      local held, clashes = {0, 0, 0, 0}, false
      held[gates.mode_at(claim, depth)] = 1
      for mode in pairs(wants) do clashes = clashes or not gates.fits(held, mode) end
      if clashes then count = count + 1 end
    end
  end
  return count
end

-- How many walks hold a gate in modes that one of *wants* does not fit.
local function clashing(gate, wants)
  local count = 0
  for mode = IS, X_MODE do
    local held, clashes = {0, 0, 0, 0}, false
    held[mode] = 1
    for wanted in pairs(wants) do clashes = clashes or not gates.fits(held, wanted) end
    if clashes then count = count + gate[mode] end
  end
  return count
end

local function by_place(left, right) return left[SEQ] < right[SEQ] end

local found_dead, found_holders, found_lines = {}, {}, {}
local entries_left, heads_left = ENTRIES_LOOKED_AT_MAX, HOLDERS_LOOKED_AT_MAX

-- A question at a gate, as a text.
local function asked_at(key, wants)
  local text = key .. '\0'
  for mode = IS, X_MODE do text = text .. (wants[mode] and mode or '') end
  return text
end

-- Up to ten dead jobs that hold a gate against one of *wants*, in order of place.
local function dead_at(key, depth, wants)
  if S[HOLDING] == 0 or clashing(gates.of(key), wants) == 0 then return {} end
  local asked = asked_at(key, wants)
  if found_dead[asked] then return found_dead[asked] end
  local walk, dead, seen = paths.walk(store.holds, paths.ranges(key), 1, false, 100), {}, {}
  local member, looked_at = walk.next(), 0
  while member and looked_at < DEAD_LOOKED_AT_MAX do
    looked_at = looked_at + 1
    local other = walk.job()
    if not seen[other.id] and count_against(other, key, depth, wants) > 0 then
      seen[other.id] = true
      dead[#dead + 1] = other
    end
    member = walk.next()
  end
  table.sort(dead, by_place)
  for at = JOBS_NAMED_MAX + 1, #dead do dead[at] = nil end
  found_dead[asked] = dead
  return dead
end

-- Return whether a job with a claim on a path below a gate may hold that gate, as far as the gates between tell; if not, also
-- the key of a gate: no job at it holds that gate nor, if it is above the path, any below it.
local function may_hold(path_text, depth)
  local gate_key = path_text == 'root' and '' or path_text == '\\root' and 'root' or path_text
  local keys = form.claims('x' .. gate_key)[1].keys
  for at = depth + 2, #keys do
    local gate = gates.of(keys[at])
    if math.max(gate[IS], gate[IX], gate[S_MODE], gate[X_MODE], gate[WAITING]) == 0 then return false, keys[at] end
    if gate[WAITING] > 0 then return true end
  end
  local own = gates.of(keys[#keys])
  return own[S_MODE] + own[X_MODE] > 0, keys[#keys]
end

-- The first ten jobs, by path and number, that hold a gate against what a walk wants there. A walk that waits at
-- the gate has no gates below it.
local function holders_of(key, depth, wants)
  local left = clashing(gates.of(key), wants)
  if left == 0 then return {} end
  local asked = asked_at(key, wants)
  if found_holders[asked] then return found_holders[asked] end
  local found, ids = {}, {}
  local walk, free, passed = paths.walk(store.paths, paths.ranges(key), 1, false, 64), false, 0
  local member = walk.next()
  while member and left > 0 and #found < JOBS_NAMED_MAX and entries_left > 0 and heads_left > 0 do
    entries_left = entries_left - 1
    local path_text = paths.split(member)
    local may, below = may_hold(path_text, depth)
    if may then
      heads_left = heads_left - 1
      local other = walk.job()
      local count = not ids[other.id] and count_against(other, key, depth, wants) or 0
      if count > 0 then
        ids[other.id], left = true, left - count
        found[#found + 1] = other
      end
    elseif below == free then
      passed = passed + 1
      if passed > PASSED_OVER_MAX then
        -- The path of one segment `root` stands elsewhere than the paths below it.
        walk.jump(path_text == form.queue_key(below) and path_text .. '\1' or below .. ';')
        passed = 0
      end
    else
      free, passed = below, 0
    end
    member = walk.next()
  end
  found_holders[asked] = found
  return found
end

-- The first in the line of a gate, from its head on.
local function line_at(key)
  local line = found_lines[key]
  if not line then
    line = {}
    for at, member in ipairs(redis.call('ZRANGE', store.line(key), 0, LINE_LOOKED_AT_MAX - 1)) do
      local other = jobs.known(string.sub(member, 2), store.line(key))
      local index = string.byte(member) - BEFORE_CLAIM
      line[at] = {other, index}
    end
    found_lines[key] = line
  end
  return line
end

-- Up to ten jobs that a waiting walk waits for, in order of place: the dead ones if there are any; and whether these
-- are dead. Mirrors core.asking.blockers.
local function blockers_of(job, index)
  local claim, depth = form.claims(job[CLAIMS])[index], job[WALKS][index]
  local key, wants = claim.keys[depth + 1], gates.mode_at(claim, depth)
  local ahead, wanted = {}, {[wants] = true}
  for _, entry in ipairs(line_at(key)) do
    local other = entry[1]
    if other[SEQ] > job[SEQ] or other.id == job.id and entry[2] >= index then break end
    ahead[#ahead + 1] = other
    wanted[gates.mode_at(form.claims(other[CLAIMS])[entry[2]], depth)] = true
  end
  local dead = dead_at(key, depth, wanted)
  if #dead > 0 then return dead, key, true end
  local found, ids = {}, {[job.id] = true}
  local function add(other)
    if not ids[other.id] and #found < JOBS_NAMED_MAX then
      ids[other.id] = true
      found[#found + 1] = other
    end
  end
  for _, other in ipairs(holders_of(key, depth, {[wants] = true})) do add(other) end
  for _, other in ipairs(ahead) do add(other) end
  table.sort(found, by_place)
  return found, key, false
end

-- Which releases have refused a ready job, as text; nil if a worker of another one serves it.
local function refused_by_all(job)
  local is_everyone, users = untried(job[POOL] .. '\1' .. job[REFUSED_BY], job[POOL])
  if is_everyone or users[job[USER]] then return nil end
  local names, said = {}, {}
  for _, worker in ipairs(workers.live()) do
    if worker[VERSION_AT] ~= '' then names[worker[RELEASE_AT]] = worker[VERSION_AT] end
  end
  for release in string.gmatch(job[REFUSED_BY], '[^,]+') do said[#said + 1] = names[release] or release end
  return 'task ' .. job[TASK] .. ', unknown to release' .. (#said > 1 and 's' or '') .. ' ' .. table.concat(said, ', ')
end

-- The name of the selection of a task or a pool, as of a pause (lib/structures/pauses), by the key of its counter.
function limits.selection(key)
  local name = string.sub(key, 3)
  if string.byte(key, 2) == 116 then return '\n\n\n' .. name .. '\n\n\n' end
  return '\n\n\n\n' .. name .. '\n\n'
end

local function reason_queued(job)
  for index, depth in ipairs(job[WALKS] or {}) do
    if depth < GRANTED then
      local named, key, is_dead = blockers_of(job, index)
      return {kind = is_dead and 'dead_hold' or 'place', jobs = named, path = key, stuck = is_dead}
    end
  end
  if not job[OFFER] then
    local is_unknown = job[UNKNOWN_TASKS] > 0
    local detail = is_unknown and 'task ' .. job[TASK] or nil
    return {kind = is_unknown and 'unknown_task' or 'backoff', until_ms = job[DUE_AT], stuck = is_unknown, detail = detail}
  end
  if S[PAUSED] > 0 then
    local pause, key = pauses.holding(job)
    if pause then
      local selection = string.byte(key) == 10 and key
      return {kind = 'paused', path = not selection and key, until_ms = pause.until_ms, stuck = not pause.until_ms, selection = selection}
    end
  end
  local apart = form.is_place(job[OFFER]) and limits.apart_by(job)
  if apart then
    local selection = limits.is_selection(apart.key) and limits.selection(apart.key)
    local detail = 'its cost of ' .. string.format('%.0f', meters.cost_of(job)) .. ' is more than the limit has'
    return {kind = 'limit', path = not selection and apart.key, stuck = true, detail = detail, selection = selection}
  end
  if form.is_place(job[OFFER]) then
    local limiter, key = limits.at(job[OFFER])
    if limiter then
      local selection = limits.is_selection(key) and limits.selection(key)
      local until_ms, first = limits.until_ms(limiter, key, job[OFFER])
      if first and first.id == job.id then first = nil end
      return {kind = 'limit', path = not selection and key, until_ms = until_ms, selection = selection, jobs = {first or nil}}
    end
  end
  if job[PRESENCE] then return {kind = 'caller'} end
  local refused_text = job[REFUSED_BY] and refused_by_all(job)
  if refused_text then return {kind = 'unknown_task', stuck = true, detail = refused_text} end
  local detail = 'pool ' .. job[POOL] .. (job[USER] ~= '' and ', user ' .. job[USER] or '')
  if not is_served(job[POOL], job[USER]) then return {kind = 'no_worker', stuck = true, detail = detail} end
  return {kind = 'worker', detail = detail}
end

local function reason_of(job)
  local state = job[STATE]
  if state == SCHEDULED then return {kind = 'time', until_ms = job[DUE_AT]} end
  if state == DEFERRED then
    local named, dead, ids = {}, {}, edges.some_open(job)
    local waits_for_signals, until_ms = #ids > 0, job[EXPIRY_MS] or nil
    jobs.prefetch(ids)
    -- A staged job waits for the commit, which has no name.
    for _, id in ipairs(ids) do
      local other = jobs.of(id) or {id = id}
      named[#named + 1] = other
      if other[STATE] == FAILED then dead[#dead + 1] = other end
      waits_for_signals = waits_for_signals and (jobs.is_signal(id) or other[TASK] == SIGNAL_TASK)
      if other[EXPIRY_MS] then until_ms = math.min(until_ms or other[EXPIRY_MS], other[EXPIRY_MS]) end
    end
    local ahead, some = #dead > 0 and dead or named, {}
    for at = 1, math.min(#ahead, JOBS_NAMED_MAX) do some[at] = ahead[at] end
    return {
      kind = waits_for_signals and 'signal' or #dead > 0 and 'dead_dependency' or 'dependency', jobs = some, stuck = #dead > 0,
      until_ms = waits_for_signals and until_ms or nil,
      open = job[BLOCKED] - (job[STAGED] and 1 or 0), told = job[STARTED_AT] and 0 or edges.count_needs(job),
    }
  end
  if state == STARTED then
    -- Whether it runs past its timeout is for the codec to say.
    local detail = string.format('worker %s, attempt %.0f', job[WORKER], job[ATTEMPTS])
    if job[LOOP_BLOCKED] then
      detail = detail .. string.format(', its event loop blocked for %.0f s', math.floor((NOW - job[LOOP_BLOCKED]) / 1000))
    end
    local progress = job[REPORTED] and redis.call('HGET', store.progress, job.id)
    return {kind = job[CANCEL] and 'overdue' or 'running', detail = detail, progress = progress}
  end
  if state == QUEUED then return reason_queued(job) end
  return {kind = 'over', detail = job[CAUSE]}
end

local function text_of_ms(ms) return ms and string.format('%.0f', ms) or '' end

-- A reason as a flat list: what it says, then what the codec needs to tell a job that runs from one that is overdue, and of
-- one that no worker serves which workers there are.
local function reply_of(job, reason)
  local ids = {}
  for at, other in ipairs(reason.jobs or {}) do ids[at] = other.id end
  local reply = {
    job.id, job[STATE], reason.kind, table.concat(ids, '\n'), reason.path and '/' .. reason.path or '',
    text_of_ms(reason.until_ms), reason.stuck and '1' or '0', reason.detail and '=' .. reason.detail or '', text_of_ms(reason.open or 0),
    text_of_ms(reason.told or 0), reason.progress or '', text_of_ms(job[STARTED_AT]), text_of_ms(NOW),
    reason.kind == 'running' and jobs.first_line(heads.spec(job)) or '',
  }
  if reason.selection then reply[#reply + 1] = reason.selection end
  if reason.kind == 'no_worker' then
    local told = workers.told()
    for at = 1, #told do reply[#reply + 1] = told[at] end
  end
  return reply
end

local CYCLE_EDGES_MAX = 4000 -- @const

-- Describe a cycle of open edges, for a job on it or one that waits for it.
local function cycle_text(cycle, job_id)
  local who = 'it waits for jobs that wait'
  for _, id in ipairs(cycle) do
    if id == job_id then who = 'they wait' end
  end
  local named, more = table.concat(cycle, ', ', 1, math.min(#cycle, JOBS_NAMED_MAX)), #cycle - JOBS_NAMED_MAX
  return who .. ' for one another, cancel one: ' .. named .. (more > 0 and ' and ' .. more .. ' more' or '')
end

-- A cycle of open edges through a job, from the job on; nil where there is none. None is ever closed; one in a store may be
-- of an earlier release. Breadth first.
local function cycle_of(job)
  local before, todo, looked_at, at = {[job.id] = false}, {job.id}, 0, 1
  while at <= #todo do
    local id = todo[at]
    local here = jobs.of(id)
    if here and not OVER[here[STATE]] and here[BLOCKED] > 0 then
      looked_at = looked_at + here[BLOCKED]
      if looked_at > CYCLE_EDGES_MAX then return nil end
      local ids = redis.call('HKEYS', store.blocked(id))
      table.sort(ids, form.less)
      for _, other in ipairs(ids) do
        if other == job.id then
          local cycle = {}
          while id do
            table.insert(cycle, 1, id)
            id = before[id]
          end
          return cycle
        end
        if before[other] == nil then
          before[other] = id
          todo[#todo + 1] = other
        end
      end
    end
    at = at + 1
  end
end

-- The reason of a job, which names the cycle of open edges through it if there is one.
local function cycle_reason(job, reason)
  local cycle = reason.kind == 'dependency' and cycle_of(job)
  if cycle then reason.stuck, reason.detail = true, cycle_text(cycle, job.id) end
  return reason
end
