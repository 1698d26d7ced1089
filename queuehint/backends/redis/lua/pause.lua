#!lua flags=allow-oom
--[[ pause: stop starts of the jobs that a filter selects.
  ARGV[9] name      str  see lib/structures/pauses; ARGV[10] for_ms int, after which they are resumed, "" for no end
  Returns more, now, next, 1 if this changed anything.
  Refuses PAUSES_FULL; nothing is changed.
  Mirrors core.operating ]]
-- @include lib/rules
args.count(10)
local changed = pauses.begin(pauses.named(9), args.int_or_none(10, 1))
if changed == nil then return redis.error_reply('PAUSES_FULL') end
work.follow()
return request.reply({changed and 1 or 0})
