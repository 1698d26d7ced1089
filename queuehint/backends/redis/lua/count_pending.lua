#!lua flags=no-writes,allow-oom
--[[ count_pending: count the unfinished jobs at or below a path, and tell whether any can go on without an operator.
  ARGV[9] path      str  "/" and the gate key, "-" for everywhere; ARGV[10] 1 to count SCHEDULED jobs too
  Returns how many, 1 if some can go on, and up to 100 reasons of those that cannot.
  Mirrors core.asking.why ]]
-- @include lib/questions
-- @include lib/asking/reasons
local LOOKED_AT_ALL_MAX, COUNTED_MAX, REASONS_MAX, DEFERRED_LOOKED_AT_MAX = 10000, 1000, 100, 1000 -- @const
args.count(10)
local everywhere, with_scheduled = args.path(9, '-') == nil, args.flag(10)

-- Whether one of the first DEFERRED jobs waits for a signal, and only until a time.
local function any_wait_ends()
  local ids = redis.call('ZRANGE', store.deferred, 0, DEFERRED_LOOKED_AT_MAX - 1)
  jobs.prefetch(ids)
  for _, id in ipairs(ids) do
    local job = jobs.known(id, store.deferred)
    if job[EXPIRY_MS] and reason_of(job).kind == 'signal' then return true end
  end
  return false
end

-- Return whether any job of the namespace can go on without an operator.
local function anything_moves()
  if redis.call('LLEN', store.left) > 0 or S[COUNT_OF.R] > 0 then return true end
  if S[COUNT_OF.S] > 0 and (with_scheduled or S[COUNT_OF.D] > 0) then return true end
  if with_scheduled and any_wait_ends() then return true end
  local _, all, unserved, refused = count_ready()
  if all > unserved + refused then return true end
  return S[BACKING_OFF_NOW] > 0 or S[LIMITED] > 0 or (S[PAUSED] > 0 and pauses.count_parked(false) > 0)
end

-- Unfinished jobs there, up to *limit*, in order of path and number, below a path once a claim; and whether all were
-- looked at.
local function pending_jobs(limit)
  local ranges = everywhere and {{'-', '+'}} or paths.ranges(args.path(9, '-'))
  local walk, found, looked_at = paths.walk(store.paths, ranges, 1, false, 100), {}, 0
  local member, seen = walk.next(), {}
  while member and #found < limit and looked_at < LOOKED_AT_ALL_MAX do
    looked_at = looked_at + 1
    local job = walk.job()
    local id = job.id
    if (with_scheduled or job[STATE] ~= SCHEDULED) and not jobs.is_hidden(job) and not (everywhere and seen[id]) then found[#found + 1] = job end
    seen[id] = true
    member = walk.next()
  end
  return found, looked_at < LOOKED_AT_ALL_MAX
end

local cycles, edges_left = {}, CYCLE_EDGES_MAX

-- The first DEFERRED job that one waits for; nil where there is none, or too much has been looked at.
local function next_ahead(job)
  edges_left = edges_left - job[BLOCKED]
  if edges_left < 0 then return nil end
  local ids = redis.call('HKEYS', store.blocked(job.id))
  table.sort(ids, form.less)
  for _, id in ipairs(ids) do
    local other = jobs.of(id)
    if other and other[STATE] == DEFERRED then return other end
  end
end

-- The cycle of open edges that a job is on or waits for, where nothing that it waits for goes on by itself; empty where
-- none is found.
local function cycle_ahead(job)
  local way, place, at = {}, {}, job
  while at and not place[at.id] and not cycles[at.id] do
    way[#way + 1], place[at.id] = at.id, #way + 1
    at = next_ahead(at)
  end
  local cycle = at and cycles[at.id] or {}
  if at and place[at.id] then cycle = {unpack(way, place[at.id])} end
  for _, id in ipairs(way) do cycles[id] = cycle end
  return cycle
end

local known = {}

-- Whether a job can go on without a person: neither it nor what it waits for, as far as named, is stuck.
local function moves(job)
  local seen, todo, all_wait = {[job.id] = true}, {job}, true
  while #todo > 0 do
    local at = table.remove(todo)
    local reason = reason_of(at)
    -- If no job could be named, it may wait for any job that moves.
    local is_lost = reason.kind == 'place' and #reason.jobs == 0 and not anything_moves()
    if reason.kind == 'signal' then is_lost = not with_scheduled or not reason.until_ms end
    if reason.stuck or is_lost or known[at.id] == false then
      known[job.id] = false
      return false
    end
    if reason.kind == 'place' or reason.kind == 'dependency' then
      for _, other in ipairs(reason.jobs) do
        if other[STATE] and not seen[other.id] and known[other.id] ~= true then
          seen[other.id] = true
          todo[#todo + 1] = other
        end
      end
    else
      all_wait = false
    end
  end
  if all_wait and #cycle_ahead(job) > 0 then
    for id in pairs(seen) do known[id] = false end
    return false
  end
  for id in pairs(seen) do known[id] = true end
  return true
end

local count, moving, reasons_of
if everywhere then
  count = S[COUNT_OF.D] + S[COUNT_OF.Q] + S[COUNT_OF.R] + (with_scheduled and S[COUNT_OF.S] or 0)
  moving = count > 0 and anything_moves()
  reasons_of = count > 0 and not moving and pending_jobs(REASONS_MAX) or {}
else
  local found, whole = pending_jobs(COUNTED_MAX)
  count, moving = #found, false
  for _, job in ipairs(found) do
    if moves(job) then
      moving = true
      break
    end
  end
  moving = moving or (count == COUNTED_MAX or not whole) and anything_moves()
  reasons_of = moving and {} or found
end
local reply = {count, moving and 1 or 0}
for at = 1, math.min(#reasons_of, REASONS_MAX) do
  local job = reasons_of[at]
  local reason = reason_of(job)
  local cycle = reason.kind == 'dependency' and cycle_ahead(job) or {}
  if #cycle > 0 then reason.stuck, reason.detail = true, cycle_text(cycle, job.id) end
  reply[#reply + 1] = reply_of(job, reason)
end
return reply
