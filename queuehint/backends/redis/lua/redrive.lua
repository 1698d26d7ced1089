#!lua flags=allow-oom
--[[ redrive: requeue dead jobs, or make those due that wait for a time.
  ARGV[9] which     str  dead, downstream: and those canceled because of these, or waiting: for a time
  ARGV[10..]        ids
  Returns more, now, next, and for each id its verdict (D done, R refused, U unknown) and state ("-" none).
  Mirrors core.operating   Cost O(depth) a job, and what follows ]]
-- @include lib/rules
args.count(9, 1)
local which = args.one_of(9, {dead = true, downstream = true, waiting = true})
if which == 'waiting' then
  local found, answers = {}, {}
  for at = 10, #ARGV do
    local job = jobs.find(ARGV[at])
    if not job then
      answers[at - 9] = 'U-'
    elseif not job[DUE_AT] then
      answers[at - 9] = 'R' .. job[STATE]
    else
      transitions.make_due(job)
      found[at - 9] = job
    end
  end
  work.follow()
  for at, job in pairs(found) do answers[at] = 'D' .. job[STATE] end
  return request.reply({table.concat(answers)})
end
local dead, verdicts = lifecycle.sort_out(QUEUED, 10)
work.follow()
table.sort(dead, function(left, right) return left[NUMBER] < right[NUMBER] end)
for _, job in ipairs(dead) do
  archive.redrive(job)
  if which == 'downstream' then lifecycle.revive_dependents(job) end
end
return request.reply({verdicts})
