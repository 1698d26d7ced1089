#!lua flags=allow-oom
--[[ close: refuse new jobs at or below a path.
  ARGV[9] path      str  the gate key
  Returns more, now, next, 1 if this changed anything.
  Mirrors core.operating ]]
-- @include lib/rules
args.count(9)
local changed = closings.last_at(ARGV[9]) == nil
if changed then closings.close(ARGV[9], '') end
work.follow()
return request.reply({changed and 1 or 0})
