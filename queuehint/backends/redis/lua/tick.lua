#!lua flags=allow-oom
--[[ tick: do what is left over and what is due.
  Returns more, now, next, and how many records were dropped before their time.
  Mirrors core.working   Cost: the budget ]]
-- @include lib/plain/tick_idle
-- @include lib/rules
args.count(8)
work.follow()
memory.relieve()
return request.reply({memory.dropped})
