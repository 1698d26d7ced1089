#!lua flags=allow-oom
--[[ resume_schedule: undo the pause of a schedule if it has the given version.
  ARGV[9] name      str  ARGV[10] version int; ARGV[11] next_ms int, when it is due now, "" for never
  Returns more, now, next, 1 if this changed anything.   Refuses NO_SCHEDULE
  Mirrors core.operating ]]
-- @include lib/rules
args.count(11)
local version, next_ms = args.int(10), args.int_or_none(11, -INT_MAX)
local schedule = schedules.of(ARGV[9])
if not schedule then return redis.error_reply('NO_SCHEDULE') end
local changed = schedule[IS_PAUSED] and schedule[VERSION_OF] == version
if changed then
  schedule[IS_PAUSED] = false
  schedules.set(ARGV[9], schedule, next_ms)
end
work.follow()
return request.reply({changed and 1 or 0})
