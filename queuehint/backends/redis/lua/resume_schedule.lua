#!lua flags=allow-oom
--[[ resume_schedule: undo the pause of a schedule as it is in one version.
  KEYS[1] root      str  namespace root with its hash tag, "{qh:default}"; lib/request/keys builds every other key from it
  KEYS[2] meta      str  the only key that always exists: see conversation.py
  ARGV[1] now_ms    int  the time, for tests only; "" asks the server
  ARGV[2] lane      str  the session the request belongs to, "" for none; ARGV[3] request int, its number there
  ARGV[4..7]        int  how long records are kept: finished, failed, canceled, with a service; ms
  ARGV[8] budget    int  units of following work
  ARGV[9] name      str  ARGV[10] version int; ARGV[11] next_ms int, when it is due now, "" for never
  Returns more, now, next, 1 if this changed anything.   Refuses NO_SCHEDULE   Mirrors core.schedules ]]
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
return request.reply('resume_schedule', {changed and 1 or 0})
