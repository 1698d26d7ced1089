#!lua flags=allow-oom
--[[ redrive: requeue dead jobs, or make those due that wait for a time, or run jobs again that are over.
  ARGV[9] which     str  dead, downstream: and those canceled because of these, or waiting: for a time; again or
    again downstream: those that are over
  ARGV[10] drop_steps int 1 to drop the stored results of the steps of these jobs
  ARGV[11..]        ids, for again each with its version
  Returns more, now, next, and for each id its verdict (D done, R refused, U unknown; for again also T of another version,
    and Q as it was, because of others) and state ("-" none).
  Mirrors core.operating   Cost O(depth) a job, and what follows ]]
-- @include lib/rules
args.count(10, 1)
local which, drop_steps = args.one_of(9, {dead = true, downstream = true, waiting = true, again = true, ['again downstream'] = true}), args.flag(10)
local function forget_steps(job)
  if drop_steps and job[STEPS] > 0 then job[STEPS], job[STEP_BYTES] = 0, 0 end
end
if which == 'waiting' then
  local found, answers = {}, {}
  for at = 11, #ARGV do
    local job = jobs.find(ARGV[at])
    if not job then
      answers[at - 10] = 'U-'
    elseif not job[DUE_AT] then
      answers[at - 10] = 'R' .. job[STATE]
    else
      transitions.make_due(job)
      found[at - 10] = job
    end
  end
  work.follow()
  for at, job in pairs(found) do answers[at] = 'D' .. job[STATE] end
  return request.reply({table.concat(answers)})
end
if which == 'again' or which == 'again downstream' then
  work.follow()
  local ids, found, blocked, outside, answers, is_whole = {}, {}, {}, {}, {}, true
  local waiting_jobs, waiting_ids, outside_ids = {}, {[0] = 0}, {}
  for at = 11, #ARGV, 2 do ids[ARGV[at]] = true end
  for at = 11, #ARGV, 2 do
    local job, version = jobs.find(ARGV[at]), args.int(at + 1)
    local verdict = 'U-'
    if job then
      local waits, others, behind
      local is_stale = OVER[job[STATE]] and version ~= job[VERSION]
      if not is_stale then waits, others, behind = lifecycle.blocked_again(job, ids) end
      verdict = (is_stale and 'T' or waits and 'Q' or 'R') .. job[STATE]
      if waits and not blocked[job.id] then
        found[#found + 1], blocked[job.id] = job, waits
        for _, need in ipairs(others) do
          local other = jobs.of(need[1])
          outside_ids[#outside_ids + 1] = need[1]
          outside[job.id] = outside[job.id] or (other and not OVER[other[STATE]]) or nil
        end
        for _, each in ipairs(behind) do
          if not waiting_ids[each.id] then
            waiting_jobs[#waiting_jobs + 1], waiting_ids[each.id], waiting_ids[0] = each, true, waiting_ids[0] + 1
          end
        end
      end
    end
    answers[#answers + 1] = verdict
  end
  local closes_circle = edges.may_reach(outside_ids, waiting_ids)
  for at, verdict in ipairs(answers) do
    -- What is not over outside waits for these in turn, through those that wait for them, or may.
    local is_refused = closes_circle and string.sub(verdict, 1, 1) == 'Q' and outside[ARGV[9 + 2 * at]]
    if is_refused then answers[at] = 'R' .. string.sub(verdict, 2) end
    is_whole = is_whole and string.sub(answers[at], 1, 1) == 'Q'
  end
  if is_whole then
    table.sort(found, function(left, right) return left[NUMBER] < right[NUMBER] end)
    for _, job in ipairs(found) do
      archive.revive(job, job[NEEDS] and edges.all_needs(job) or {}, blocked[job.id])
      forget_steps(job)
      if which ~= 'again' then lifecycle.revive_dependents(job) end
    end
    for _, job in ipairs(waiting_jobs) do
      for _, need in ipairs(edges.all_needs(job)) do
        if ids[need[1]] and not edges.of(job, need[1]) then edges.add(job, need[1], need[2]) end
      end
    end
    for at = 1, #answers do answers[at] = 'D' .. jobs.find(ARGV[9 + 2 * at])[STATE] end
  end
  return request.reply({table.concat(answers)})
end
local dead, verdicts = lifecycle.sort_out(QUEUED, 11)
work.follow()
table.sort(dead, function(left, right) return left[NUMBER] < right[NUMBER] end)
for _, job in ipairs(dead) do
  archive.redrive(job)
  forget_steps(job)
  if which == 'downstream' then lifecycle.revive_dependents(job) end
end
return request.reply({verdicts})
