#!lua flags=allow-oom
--[[ withdraw: drop all parts of a submission that is not committed, in bounded steps.
  ARGV[9] staged    str  the id shared by the parts
  Returns more, now, next, 1 if there was one to withdraw.
  Mirrors core.producing   Cost: the budget ]]
-- @include lib/rules
args.count(9)
local start = jobs.of(START_MARK .. ARGV[9])
local is_open = start and not start.pruned and not OVER[start[STATE]]
if is_open then staging.withdraw(start) end
work.follow()
return request.reply({is_open and 1 or 0})
