#!lua flags=allow-oom
--[[ cancel: cancel jobs by id; running ones are asked to stop.
  ARGV[9] reason    str
  ARGV[10..]        ids
  Returns more, now, next, and for each id its verdict (D done, Q requested, R refused, U unknown) and state ("-" none).
  Mirrors core.operating   Cost O(depth) a job, and what follows ]]
-- @include lib/rules
args.count(9, 1)
local verdicts = {}
for at = 10, #ARGV do
  local job = jobs.find(ARGV[at])
  if not job then
    verdicts[#verdicts + 1] = 'U-'
  elseif OVER[job[STATE]] then
    verdicts[#verdicts + 1] = 'R' .. job[STATE]
  else
    lifecycle.cancel(job, ARGV[9])
    verdicts[#verdicts + 1] = (job[STATE] == STARTED and 'Q' or 'D') .. job[STATE]
  end
end
work.follow()
return request.reply({table.concat(verdicts)})
