#!lua flags=allow-oom
--[[ close: refuse new jobs at or below a path, or undo the closing of this path, not of those above or below it.
  ARGV[9] path      str  the gate key; ARGV[10] reopen 1 or 0
  Returns more, now, next, 1 if this changed anything.
  Mirrors core.operating ]]
-- @include lib/rules
args.count(10)
local reopens = args.flag(10)
local changed = reopens == (closings.last_at(ARGV[9]) ~= nil)
if changed and reopens then closings.reopen(ARGV[9]) elseif changed then closings.close(ARGV[9], '') end
work.follow()
return request.reply({changed and 1 or 0})
