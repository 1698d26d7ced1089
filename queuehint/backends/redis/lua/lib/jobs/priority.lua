--[[ priority: priority inheritance. A job that begins to wait passes its level to the jobs it waits for; mirrors core.jobs.priority.
  The state counts behind LEVELS the jobs with a place at each level, as of the start of this step: `lowest` returns the
  lowest level present then or since. Where all levels are alike, the usual case, nothing is searched. ]]
local HEIRS_MAX, HEIRS_OF_STEP_MAX, LOOKED_AT_MAX, OTHERS_MAX = 100, 400, 1000, 32 -- @const
local priority = {seen = 9, stored = false, by_gate = false}

function priority.of(job) return job[LEVEL] or job[PRIORITY] end

function priority.lowest()
  if not priority.stored then
    priority.stored = 9
    for level = 5, 1, -1 do
      if S[LEVELS + level] > 0 then priority.stored = level end
    end
  end
  return priority.stored < priority.seen and priority.stored or priority.seen
end

-- Record that a job has got a place, or another priority.
function priority.see(job)
  if job[PRIORITY] < priority.seen then priority.seen = job[PRIORITY] end
  if priority.by_gate then priority.note(job) end
end

lazily(priority, function()
-- The rest of the bounds of this step: jobs that may inherit a level, and entries looked at to find them.
local heirs_left, entries_left = HEIRS_OF_STEP_MAX, 4 * LOOKED_AT_MAX

-- Remember a job that took its place in this step, because no index knows it yet.
function priority.note(job)
  for _, claim in ipairs(form.claims(job[CLAIMS])) do
    for _, key in ipairs(claim.keys) do
      local known = priority.by_gate[key] or {}
      priority.by_gate[key] = known
      known[#known + 1] = job
    end
  end
end

-- How many walks of a job hold a gate: they are granted there, or have passed it.
local function count_held(job, key, depth)
  local walks, count = job[SEQ] > 0 and job[WALKS], 0
  for index, claim in ipairs(walks and form.claims(job[CLAIMS]) or {}) do
    if claim.keys[depth + 1] == key and walks[index] > depth then count = count + 1 end
  end
  return count
end

-- The jobs that came to a gate before one that waits there: those that hold it, and those ahead in its line.
local function before(heir, key, depth)
  local gate, found, seen = gates.of(key), {}, {[heir.id] = true}
  local held = gate[IS] + gate[IX] + gate[S_MODE] + gate[X_MODE] - count_held(heir, key, depth)
  local function add(job)
    if seen[job.id] then return true end
    local count = count_held(job, key, depth)
    if count == 0 then return false end
    seen[job.id], held = true, held - count
    -- One that is dead holds its place, and nothing can be done for it.
    if not OVER[job[STATE]] then found[#found + 1] = job end
    return true
  end
  for _, job in ipairs(priority.by_gate[key] or {}) do
    if held <= 0 or #found >= HEIRS_MAX then break end
    add(job)
  end
  local looked_at = 0
  for at, range in ipairs(paths.ranges(key)) do
    local walk, others = paths.walk(store.paths, {range}, 1, false, 32), 0
    -- At the very path those that wait stand behind those that hold it.
    while held > 0 and #found < HEIRS_MAX and looked_at < LOOKED_AT_MAX and entries_left > 0 and (at == 2 or key == '' or others < OTHERS_MAX) do
      local member = walk.next()
      if not member then break end
      looked_at, entries_left = looked_at + 1, entries_left - 1
      local id = walk.id()
      local job = id and jobs.of(id)
      if not (job and add(job)) then others = others + 1 end
    end
  end
  for _, job in ipairs(gates.ahead(key, heir[SEQ], HEIRS_MAX)) do
    if not seen[job.id] and #found < HEIRS_MAX then
      seen[job.id] = true
      found[#found + 1] = job
    end
  end
  table.sort(found, function(left, right) return left[SEQ] < right[SEQ] end)
  return found
end

-- Let what stands before a job that waits take its level, if that is better; up to so many jobs are looked at.
function priority.inherit(job)
  local level, room, waiting = priority.of(job), math.min(HEIRS_MAX, heirs_left), {job}
  if room == 0 then return end
  if not priority.by_gate then
    priority.by_gate = {}
    for _, changed in pairs(jobs.dirty) do
      if changed[SEQ] > 0 then priority.note(changed) end
    end
  end
  for _, heir in ipairs(waiting) do
    for index, depth in ipairs(heir[WALKS]) do
      local key = depth < GRANTED and form.claims(heir[CLAIMS])[index].keys[depth + 1]
      local ahead = key and gates.before(heir, index, key)
      -- A job before it with such a level has passed it on already.
      if key and not (ahead and priority.of(ahead) >= level) then
        for _, other in ipairs(before(heir, key, depth)) do
          if room == 0 then return end
          room, heirs_left = room - 1, heirs_left - 1
          if priority.of(other) < level then
            other[LEVEL] = level
            jobs.dirty[other.id] = other
            if other[OFFER] == 'r' then
              ready_queue.rerank(other)
            elseif form.is_place(other[OFFER]) then
              limits.rerank(other)
            end
            if not gates.has_all(other) then waiting[#waiting + 1] = other end
          end
        end
      end
    end
  end
end
end)
