--[[ edges: dependencies between jobs, as in core.structures.edges. waiting:{A} holds the dependents of A that may still run, by
  number (by that of their redrive, if they had one); blocked:{B} the open dependencies of B, with the policies of these edges;
  NEEDS, a field for each job, its declared dependencies: a line for each, policy and id. Of a job with more than 1 000
  dependencies that is the first portion; the others have fields of their own, the id, a line end and a number. BLOCKED in a
  head counts the entries of blocked. ]]
local TO_DROP, TO_WAIT, TO_CANCEL, TO_NOTE, TO_FAIL, IS_KEPT = 'd', 'w', 'c', 'n', 'f', 'k' -- @const
local ACTION_AT = {F = 1, X = 2, C = 3}
local AFTER, START, AWAITED_AGAIN = 'ddd-', 'ddds', 'dddk' -- @const
local REACH_MAX, SORTED_MAX = 1000, 4000 -- @const
-- told: the declared dependencies of jobs of this step, by id. coming: ids that jobs of this submission depend on and that come
-- later in it. canceled_by_others: jobs that were canceled in this step because of another one's end.
local edges = {told = {}, coming = {}, canceled_by_others = {}}

lazily(edges, function()
-- Changes of this step: additions to and removals from each set of dependents, and the open edges of each job.
local waiting, open, changed, needs_read, had_none = {}, {}, {}, {}, {}

local function waiting_of(id)
  local set = waiting[id]
  if not set then
    set = {added = {}, taken = {}, taken_count = 0}
    waiting[id] = set
  end
  return set
end

-- Parse a field of NEEDS: a list of {id, policy}.
local function needs_in(field)
  local text = edges.told[field] or redis.call('HGET', store.needs, field) or ''
  local known = needs_read[text]
  if not known then
    known = {}
    for line in string.gmatch(text, '[^\n]+') do known[#known + 1] = {string.sub(line, 6), string.sub(line, 1, 4)} end
    needs_read[text] = known
  end
  return known
end

-- Where a portion of what a job was told to depend on is kept.
function edges.field(id, portion) return portion == 0 and id or id .. '\n' .. portion end

-- The declared dependencies of a job, of more than 1 000 the first portion: a list of {id, policy}.
function edges.needs_of(job) return needs_in(job.id) end

-- A portion of what a job was told to depend on, from 0 on.
function edges.portion_of(job, portion) return needs_in(edges.field(job.id, portion)) end

-- All that a job was told to depend on.
function edges.all_needs(job)
  if not job[PORTIONS] then return edges.needs_of(job) end
  local all = {}
  for portion = 0, job[PORTIONS] do
    for _, need in ipairs(edges.portion_of(job, portion)) do all[#all + 1] = need end
  end
  return all
end

-- How many dependencies a text names.
function edges.count_in(text)
  local count, at = text == '' and 0 or 1, string.find(text, '\n', 1, true)
  while at do
    count, at = count + 1, string.find(text, '\n', at + 1, true)
  end
  return count
end

-- How many jobs a job was told to depend on.
function edges.count_needs(job)
  if not job[NEEDS] then return 0 end
  if job[TOLD] then return job[TOLD] end
  local count = 0
  for portion = 0, job[PORTIONS] or 0 do
    local field = edges.field(job.id, portion)
    count = count + edges.count_in(edges.told[field] or redis.call('HGET', store.needs, field) or '')
  end
  return count
end

function edges.needs_text(needs)
  local lines_out = {}
  for at, need in ipairs(needs) do lines_out[at] = need[2] .. ' ' .. need[1] end
  return table.concat(lines_out, '\n')
end

-- Let a job depend on one that it need not wait for.
function edges.keep(job, id)
  local set = waiting_of(id)
  set.added[job.id] = job[SINCE] > 0 and job[SINCE] or job[NUMBER]
  if set.taken[job.id] then
    set.taken[job.id], set.taken_count = nil, set.taken_count - 1
  end
  local dependency = jobs.of(id)
  if not dependency then
    edges.coming[id] = true
  elseif not dependency[AWAITED] then
    dependency[AWAITED] = true
    jobs.dirty[id] = dependency
  end
end

-- The policy of an open edge; false if it is not open.
function edges.of(job, id)
  if job[BLOCKED] == 0 then return false end
  local known = open[job.id]
  if not known then
    known = {}
    open[job.id] = known
  end
  if known[id] == nil then
    -- Of a job that had none in this step all are known.
    if had_none[job.id] then return false end
    known[id] = redis.call('HGET', store.blocked(job.id), id) or false
  end
  return known[id]
end

local function change(job, id, edge)
  open[job.id], changed[job.id] = open[job.id] or {}, changed[job.id] or {}
  open[job.id][id], changed[job.id][id] = edge, true
  jobs.dirty[job.id] = job
end

-- Let a job wait for another, by an edge of this policy.
function edges.add(job, id, edge)
  edges.keep(job, id)
  if job[BLOCKED] == 0 then had_none[job.id] = true end
  if not edges.of(job, id) then job[BLOCKED] = job[BLOCKED] + 1 end
  change(job, id, edge)
end

local function forget(job, id)
  local set = waiting_of(id)
  set.added[job.id] = nil
  if not set.taken[job.id] and redis.call('ZSCORE', store.waiting(id), job.id) then
    set.taken[job.id], set.taken_count = true, set.taken_count + 1
  end
end

-- Let a job wait no more for another.
function edges.close(job, id)
  local edge = edges.of(job, id)
  change(job, id, false)
  job[BLOCKED] = job[BLOCKED] - 1
  if string.sub(edge, 4) ~= IS_KEPT then forget(job, id) end
end

-- The open dependencies of a job: id -> policy.
function edges.open_of(job)
  local all = {}
  if job[BLOCKED] == 0 then return all end
  local stored = redis.call('HGETALL', store.blocked(job.id))
  for at = 1, #stored, 2 do all[stored[at]] = stored[at + 1] end
  for id, edge in pairs(open[job.id] or {}) do all[id] = edge or nil end
  return all
end

-- Remove the edges of one portion of a job that cannot run any more; return how many.
function edges.release_portion(job, portion)
  local needs = edges.portion_of(job, portion)
  for _, need in ipairs(needs) do
    if edges.of(job, need[1]) then
      change(job, need[1], false)
      job[BLOCKED] = job[BLOCKED] - 1
    end
    forget(job, need[1])
  end
  return #needs
end

-- The ids a job waits for, in order; of more than 4 000 those of the first portion that has any. The edge to the start of
-- its submission is left out.
function edges.some_open(job)
  local ids = {}
  if job[BLOCKED] <= SORTED_MAX then
    for id in pairs(edges.open_of(job)) do
      if not jobs.is_start(id) then ids[#ids + 1] = id end
    end
  else
    for portion = 0, job[PORTIONS] or 0 do
      local named = {}
      for at, need in ipairs(edges.portion_of(job, portion)) do named[at] = need[1] end
      local stored = #named > 0 and redis.call('HMGET', store.blocked(job.id), unpack(named)) or named
      for at = 1, #named do
        if stored[at] then ids[#ids + 1] = named[at] end
      end
      if #ids > 0 then break end
    end
  end
  table.sort(ids, form.less)
  return ids
end

-- Remove all edges of a job that cannot run any more, of portions the rest; return how many.
function edges.release(job)
  local count = 0
  if job[NEEDS] == HELD then
    for _, need in ipairs(job[PORTIONS] and {} or edges.needs_of(job)) do
      forget(job, need[1])
      count = count + 1
    end
    job[NEEDS] = not job[GONE] and KNOWN
    job[PORTIONS] = job[NEEDS] and job[PORTIONS]
    jobs.dirty[job.id] = job
  end
  for id, edge in pairs(edges.open_of(job)) do
    if string.sub(edge, 4) ~= IS_KEPT then
      forget(job, id)
      count = count + 1
    end
    change(job, id, false)
  end
  job[BLOCKED], job[STAGED] = 0, false
  return count
end

-- How many depend on a job and can still run.
function edges.count(id)
  local count = redis.call('ZCARD', store.waiting(id))
  local set = waiting[id]
  if set then
    count = count - set.taken_count
    for dependent in pairs(set.added) do
      if not redis.call('ZSCORE', store.waiting(id), dependent) then count = count + 1 end
    end
  end
  return count
end

function edges.has_dependents(job)
  if not job[AWAITED] then return false end
  local set = waiting[job.id]
  if set and next(set.added) then return true end
  return redis.call('ZCARD', store.waiting(job.id)) > (set and set.taken_count or 0)
end

local readers = {}

-- The next dependent a sweep has not looked at, and its number; nil if none is left. A sweep holds at [2] whose dependents
-- it goes through, at [3] the number it has come to, at [4] the number at which it began: those after that are not its own.
function edges.next_dependent(sweep)
  local id, before = sweep[2], sweep[4]
  local set, reader = waiting[id], readers[sweep]
  if not reader then
    reader = {entries = {}, at = 1, from = sweep[3]}
    readers[sweep] = reader
  end
  local found, found_order = nil, nil
  while not found do
    if reader.at > #reader.entries then
      if reader.is_read then break end
      reader.entries = redis.call('ZRANGEBYSCORE', store.waiting(id), string.format('(%.0f', reader.from),
        string.format('%.0f', before), 'WITHSCORES', 'LIMIT', 0, 64)
      reader.at, reader.is_read = 1, #reader.entries < 128
      if #reader.entries > 0 then reader.from = tonumber(reader.entries[#reader.entries]) end
    else
      local dependent, order = reader.entries[reader.at], tonumber(reader.entries[reader.at + 1])
      local job = order > sweep[3] and not (set and (set.taken[dependent] or set.added[dependent])) and jobs.known(dependent, store.waiting(id))
      if job and not OVER[job[STATE]] then found, found_order = job, order else reader.at = reader.at + 2 end
    end
  end
  for dependent, order in pairs(set and set.added or {}) do
    if order > sweep[3] and order <= before and (not found_order or order < found_order) then
      local job = jobs.of(dependent)
      if job and not OVER[job[STATE]] then found, found_order = job, order end
    end
  end
  return found, found_order
end

-- The first job, of a number greater than *after*, that is canceled because of another.
function edges.first_canceled_by(id, after)
  local found = nil
  local walk = paths.walk(store.fallen, {{'[' .. id .. '\0' .. form.sortable(after + 1), '(' .. id .. '\1'}}, 1, false, 16)
  local member = walk.next()
  while member do
    local _, fallen_id = form.split(member, #id + 2)
    local job = jobs.of(fallen_id)
    if job and job[CANCELED_BY] == id then
      found = job
      break
    end
    member = walk.next()
  end
  for _, job in pairs(edges.canceled_by_others) do
    if job[CANCELED_BY] == id and job[NUMBER] > after and (not found or job[NUMBER] < found[NUMBER]) then found = job end
  end
  return found
end

function edges.set_canceled_by(job, id)
  job[CANCELED_BY] = id
  edges.canceled_by_others[job.id] = job
  jobs.dirty[job.id] = job
end

-- The action of an edge when its dependency ends in a state.
function edges.edge_action(edge, state) return string.sub(edge, ACTION_AT[state], ACTION_AT[state]) end

-- The number from which on a job is known: its own, or that of the commit of its submission in parts.
function edges.came(job)
  local start = job[STAGED] and not OVER[job[STATE]] and jobs.of(START_MARK .. job[STAGED])
  return start and start[SINCE] or job[CAME] or job[NUMBER]
end

-- Whether another has the id of one that a job, of a submission in parts that has not let it go, depends on, and came too
-- late to be meant: by a later commit or enqueue, or in a later part.
function edges.is_late(job, other)
  local came = edges.came(other)
  return came > edges.came(job) or (came == edges.came(job) and other[NUMBER] > job[CAME])
end

-- Whether one of *ids* is one of *targets*, a set, or waits for it, through however many others; nil if that takes too long,
-- or if one waits for more than 1 000. *seen* are not looked at again; at [0] it has how many they are.
function edges.reaches(ids, targets, seen)
  local todo = {}
  for _, id in ipairs(ids) do
    if not seen[id] then todo[#todo + 1] = id end
  end
  local at = 1
  while at <= #todo do
    local id = todo[at]
    if targets[id] then return true end
    if not seen[id] then
      if seen[0] >= REACH_MAX then return nil end
      seen[id], seen[0] = true, seen[0] + 1
      local job = jobs.of(id)
      if job and not OVER[job[STATE]] then
        local above = {}
        if job[STAGED] then
          -- One that was committed and not taken up yet will wait for what it was told to depend on.
          for _, need in ipairs(edges.all_needs(job)) do
            local dependency = jobs.of(need[1])
            if dependency and not jobs.is_hidden(dependency) and not edges.is_late(job, dependency) then above[#above + 1] = need[1] end
          end
        elseif job[BLOCKED] > REACH_MAX then
          return nil
        else
          for dependency in pairs(edges.open_of(job)) do above[#above + 1] = dependency end
        end
        if #above > REACH_MAX then return nil end
        table.sort(above, form.less)
        for _, dependency in ipairs(above) do todo[#todo + 1] = dependency end
      end
    end
    at = at + 1
  end
  return false
end

-- Those that depend on a job and can still run, in order of number; up to 1 000.
local function dependents_of(id)
  local found, set = {}, waiting[id] or {added = {}, taken = {}, taken_count = 0}
  local stored = redis.call('ZRANGE', store.waiting(id), 0, REACH_MAX + set.taken_count - 1, 'WITHSCORES')
  for at = 1, #stored, 2 do
    if not set.added[stored[at]] and not set.taken[stored[at]] then found[#found + 1] = {stored[at], tonumber(stored[at + 1])} end
  end
  for dependent, order in pairs(set.added) do found[#found + 1] = {dependent, order} end
  table.sort(found, function(left, right) return left[2] < right[2] end)
  return found
end

-- Those that depend on a job that is over and are not over; false if one of them does not wait for it and has begun, or if
-- there are more than 1 000.
function edges.waiting_for(id)
  if edges.count(id) > REACH_MAX then return false end
  local waiting_jobs = {}
  for _, entry in ipairs(dependents_of(id)) do
    local job = jobs.of(entry[1])
    if job and not OVER[job[STATE]] then
      local may_wait = edges.of(job, id) or (job[STATE] == DEFERRED and not job[PARENT] and not job[STAGED])
      if not may_wait then return false end
      waiting_jobs[#waiting_jobs + 1] = job
    end
  end
  return waiting_jobs
end

-- Whether one of *ids* waits for one of *targets*, a set with their number at [0], or might.
function edges.may_reach(ids, targets)
  return targets[0] > 0 and (targets[0] > REACH_MAX or edges.reaches(ids, targets, {[0] = 0}) ~= false)
end

-- Whether one of *ids*, a set, waits for a job along open edges, found from the job; nil if that takes too long. Jobs of a
-- submission in parts that have yet to be let go are not found.
function edges.is_awaited_by(job_id, ids)
  local seen, todo, looked_at, at = {[job_id] = true}, {job_id}, 0, 1
  while at <= #todo do
    local id = todo[at]
    looked_at = looked_at + edges.count(id)
    if looked_at > REACH_MAX then return nil end
    for _, entry in ipairs(dependents_of(id)) do
      local dependent_id = entry[1]
      local job = not seen[dependent_id] and jobs.of(dependent_id)
      if job and not OVER[job[STATE]] and edges.of(job, id) then
        if ids[dependent_id] then return true end
        seen[dependent_id] = true
        todo[#todo + 1] = dependent_id
      end
    end
    at = at + 1
  end
  return false
end

-- Note that the edges to a job are resolved, or open again.
function edges.end_resolving(job)
  if job[AWAITED] == RESOLVING then
    job[AWAITED] = true
    jobs.dirty[job.id] = job
  end
end

function edges.write()
  for id, set in pairs(waiting) do
    for dependent, order in pairs(set.added) do redis.call('ZADD', store.waiting(id), order, dependent) end
    for dependent in pairs(set.taken) do redis.call('ZREM', store.waiting(id), dependent) end
  end
  for id, ids in pairs(changed) do
    local put, gone = {}, {}
    for dependency in pairs(ids) do
      local edge = open[id][dependency]
      if edge then put[#put + 1], put[#put + 2] = dependency, edge else gone[#gone + 1] = dependency end
    end
    for from = 1, #put, 2000 do redis.call('HSET', store.blocked(id), unpack(put, from, math.min(from + 1999, #put))) end
    for from = 1, #gone, 2000 do redis.call('HDEL', store.blocked(id), unpack(gone, from, math.min(from + 1999, #gone))) end
  end
end

function edges.see_types()
  for id in pairs(waiting) do redis.call('ZCARD', store.waiting(id)) end
  for id in pairs(changed) do redis.call('HLEN', store.blocked(id)) end
end
end)
