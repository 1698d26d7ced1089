#!lua flags=allow-oom
--[[ cancel_path: begin a sweep that cancels the jobs enqueued at or below a path until now.
  ARGV[9] path      str  the gate key; ARGV[10] reason str
  Returns more, now, next, how many were reached so far, and the number of the sweep if it goes on, else 0.
  Mirrors core.operating   Cost: the budget ]]
-- @include lib/rules
args.count(10)
-- The cancellation takes a number itself: jobs that are enqueued or redriven later are not covered.
S[NUMBERS] = S[NUMBERS] + 1
local sweep = work.cancel_sweep({ARGV[9]}, S[NUMBERS], ARGV[10], false)
work.push(sweep)
work.follow()
local number = sweep[13] and 0 or work.leave_tally(sweep)
return request.reply({sweep[11], number})
