#!lua flags=allow-oom
--[[ change_schedule: pause, resume or forget a schedule.
  ARGV[9] name      str  ARGV[10] change pause, after which it is never due until resumed; resume, if it has the given version; or drop
  ARGV[11] version  int  and ARGV[12] next_ms int, when it is due now, "" for never; both of resume, else ""
  Returns more, now, next, 1 if this changed anything.   Refuses NO_SCHEDULE, not of drop
  Mirrors core.operating ]]
-- @include lib/rules
args.count(12)
local change = args.one_of(10, {pause = true, resume = true, drop = true})
local version, next_ms = args.int_or_none(11), args.int_or_none(12, -INT_MAX)
if change == 'resume' and not version then args.refuse(11) end
local changed
if change == 'drop' then
  changed = redis.call('HEXISTS', store.schedules, ARGV[9]) == 1
  if changed then schedules.change(ARGV[9], false) end
else
  local schedule = schedules.of(ARGV[9])
  if not schedule then return redis.error_reply('NO_SCHEDULE') end
  changed = not schedule[IS_PAUSED]
  if change == 'resume' then changed = schedule[IS_PAUSED] and schedule[VERSION_OF] == version end
  if changed then
    schedule[IS_PAUSED] = change == 'pause'
    if change == 'pause' then schedules.change(ARGV[9], schedule) else schedules.set(ARGV[9], schedule, next_ms) end
  end
end
work.follow()
return request.reply({changed and 1 or 0})
