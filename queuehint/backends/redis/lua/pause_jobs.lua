#!lua flags=allow-oom
--[[ pause_jobs: stop starts of the jobs that a filter selects.
  ARGV[9] filter    str  see lib/structures/pauses; ARGV[10] for_ms int, after which they are resumed, "" for no end
  Returns more, now, next, 1 if this changed anything.
  Refuses PAUSES_FULL; nothing is changed.
  Mirrors core.operating ]]
-- @include lib/rules
args.count(10)
local changed = pauses.begin(args.like(9, pauses.SELECTION), args.int_or_none(10, 1))
if changed == nil then return redis.error_reply('PAUSES_FULL') end
work.follow()
return request.reply({changed and 1 or 0})
