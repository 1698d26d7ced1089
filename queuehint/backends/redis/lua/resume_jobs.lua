#!lua flags=allow-oom
--[[ resume_jobs: undo the pause by this very filter.
  ARGV[9] filter    str  see lib/structures/pauses
  Returns more, now, next, 1 if this changed anything.
  Mirrors core.operating ]]
-- @include lib/rules
args.count(9)
local changed = pauses.resume(args.like(9, pauses.SELECTION))
work.follow()
return request.reply({changed and 1 or 0})
