#!lua flags=allow-oom
--[[ pause_schedule: pause a schedule: it is never due until resumed.
  ARGV[9] name      str
  Returns more, now, next, 1 if this changed anything.   Refuses NO_SCHEDULE
  Mirrors core.operating ]]
-- @include lib/rules
args.count(9)
local schedule = schedules.of(ARGV[9])
if not schedule then return redis.error_reply('NO_SCHEDULE') end
local changed = not schedule[IS_PAUSED]
if changed then
  schedule[IS_PAUSED] = true
  schedules.change(ARGV[9], schedule)
end
work.follow()
return request.reply({changed and 1 or 0})
