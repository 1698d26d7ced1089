#!lua flags=allow-oom
--[[ cancel_flow: cancel the unfinished jobs of a flow, in bounded steps.
  ARGV[9] flow      str  ARGV[10] reason str
  Returns more, now, next.
  Mirrors core.operating   Cost: the budget ]]
-- @include lib/rules
args.count(10)
staging.cancel_flow(ARGV[9], ARGV[10])
work.follow()
return request.reply({})
