#!lua flags=allow-oom
--[[ cancel_flow: cancel the unfinished jobs of a flow, in bounded steps.
  ARGV[9] flow      str  ARGV[10] reason str
  Returns more, now, next.
  Mirrors core.operating   Cost: the budget ]]
-- @include lib/rules
args.count(10)
-- It takes a number itself: jobs that are enqueued or redriven later are not covered.
S[NUMBERS] = S[NUMBERS] + 1
work.push({'f', ARGV[9], S[NUMBERS], S[NUMBERS], ARGV[10]})
work.follow()
return request.reply({})
