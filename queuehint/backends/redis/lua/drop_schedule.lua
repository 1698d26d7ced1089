#!lua flags=allow-oom
--[[ drop_schedule: delete a schedule.
  ARGV[9] name      str
  Returns more, now, next, 1 if this changed anything.
  Mirrors core.operating ]]
-- @include lib/rules
args.count(9)
local is_there = redis.call('HEXISTS', store.schedules, ARGV[9])
if is_there == 1 then schedules.change(ARGV[9], false) end
work.follow()
return request.reply({is_there})
