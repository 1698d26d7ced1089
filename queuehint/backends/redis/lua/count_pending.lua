#!lua flags=no-writes,allow-oom
--[[ count_pending: what is unfinished at or below a path, and whether it can move without a person.
  KEYS[1] root      str  namespace root with its hash tag, "{qh:default}"; lib/keys builds every other key from it
  KEYS[2] meta      str  the only key that always exists: see conversation.py
  ARGV[1] now_ms    int  the time, for tests only; "" asks the server
  ARGV[2..8]             not used: as for changes
  ARGV[9] path      str  "/" and the gate key, "-" for everywhere; ARGV[10] 1 to count SCHEDULED jobs too
  Returns how many, 1 if some can move, and up to 100 reasons of those that cannot.   Mirrors core.answers ]]
-- @include lib/questions
-- @include lib/reasons
local LOOKED_AT_ALL_MAX, COUNTED_MAX, REASONS_MAX = 10000, 1000, 100 -- @const
local everywhere, with_scheduled = ARGV[9] == '-', ARGV[10] == '1'

-- Whether any job at all can go on without a person.
local function anything_moves()
  if redis.call('LLEN', store.left) > 0 or S[COUNT_OF.R] > 0 then return true end
  if S[COUNT_OF.S] > 0 and (with_scheduled or S[COUNT_OF.D] > 0) then return true end
  local _, all, unserved = count_ready()
  if all > unserved then return true end
  return S[BACKING_OFF_NOW] > 0 or S[LIMITED] > 0
end

-- Unfinished jobs there, up to *limit*, in order of path and number, below a path once a claim; and whether all were
-- looked at.
local function pending_jobs(limit)
  local ranges = everywhere and {{'-', '+'}} or paths.ranges(string.sub(ARGV[9], 2))
  local walk, found, looked_at = paths.walk(store.paths, ranges, 1, false, 100), {}, 0
  local member, seen = walk.next(), {}
  while member and #found < limit and looked_at < LOOKED_AT_ALL_MAX do
    looked_at = looked_at + 1
    local _, _, id = paths.split(member)
    local job = jobs.known(id, store.paths)
    if (with_scheduled or job[STATE] ~= SCHEDULED) and not jobs.is_hidden(job) and not (everywhere and seen[id]) then found[#found + 1] = job end
    seen[id] = true
    member = walk.next()
  end
  return found, looked_at < LOOKED_AT_ALL_MAX
end

local known = {}

-- Whether a job can go on without a person: neither it nor what it waits for, as far as named, is stuck.
local function moves(job)
  local seen, todo = {[job.id] = true}, {job}
  while #todo > 0 do
    local at = table.remove(todo)
    local reason = reason_of(at)
    -- Where nobody could be named, whatever moves at all may be what it waits for.
    local is_lost = reason.kind == 'place' and #reason.jobs == 0 and not anything_moves()
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
    end
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
for at = 1, math.min(#reasons_of, REASONS_MAX) do reply[#reply + 1] = reply_of(reasons_of[at], reason_of(reasons_of[at])) end
return reply
