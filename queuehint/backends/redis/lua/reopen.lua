#!lua flags=allow-oom
--[[ reopen: undo the closing of this path, not of those above or below it.
  ARGV[9] path      str  the gate key
  Returns more, now, next, 1 if this changed anything.
  Mirrors core.operating ]]
-- @include lib/rules
args.count(9)
local changed = closings.last_at(ARGV[9]) ~= nil
if changed then closings.reopen(ARGV[9]) end
work.follow()
return request.reply({changed and 1 or 0})
