#!lua flags=allow-oom
--[[ redrive: requeue dead jobs, or make those due that wait for a time.
  ARGV[9] which     str  dead, downstream: and those canceled because of these, or waiting: for a time
  ARGV[10] drop_steps int 1 to drop the stored results of the steps of dead jobs
  ARGV[11..]        ids
  Returns more, now, next, and for each id its verdict (D done, R refused, U unknown) and state ("-" none).
  Mirrors core.operating   Cost O(depth) a job, and what follows ]]
-- @include lib/rules
args.count(10, 1)
local which, drop_steps = args.one_of(9, {dead = true, downstream = true, waiting = true}), args.flag(10)
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
local dead, verdicts = lifecycle.sort_out(QUEUED, 11)
work.follow()
table.sort(dead, function(left, right) return left[NUMBER] < right[NUMBER] end)
for _, job in ipairs(dead) do
  archive.redrive(job)
  if drop_steps and job[STEPS] > 0 then job[STEPS], job[STEP_BYTES] = 0, 0 end
  if which == 'downstream' then lifecycle.revive_dependents(job) end
end
return request.reply({verdicts})
