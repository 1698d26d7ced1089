#!lua flags=allow-oom
--[[ resume: undo the pause by this very filter.
  ARGV[9] name      str  see lib/structures/pauses
  Returns more, now, next, 1 if this changed anything.
  Mirrors core.operating ]]
-- @include lib/rules
args.count(9)
local changed = pauses.resume(pauses.named(9))
work.follow()
return request.reply({changed and 1 or 0})
