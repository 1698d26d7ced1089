#!lua flags=allow-oom
--[[ tick: do leftover work, then due timers.
  Returns more, now, next, and how many records were dropped before they expired, because memory is short.
  Mirrors core.working   Cost: the budget ]]
-- @include lib/plain/tick_idle
-- @include lib/rules
args.count(8)
work.follow()
memory.relieve()
return request.reply({memory.dropped})
