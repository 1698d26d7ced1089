#!lua flags=allow-oom
--[[ resume: undo the pause of this path, not of those above or below it.
  ARGV[9] path      str  the gate key
  Returns more, now, next, 1 if this changed anything.
  Mirrors core.operating ]]
-- @include lib/rules
args.count(9)
local changed = pauses.resume(ARGV[9])
work.follow()
return request.reply({changed and 1 or 0})
