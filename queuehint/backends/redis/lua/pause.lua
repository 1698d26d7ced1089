#!lua flags=allow-oom
--[[ pause: stop starts at or below a path.
  ARGV[9] path      str  the gate key; ARGV[10] for_ms int, after which it is resumed, "" for no end
  Returns more, now, next, 1 if this changed anything.
  Refuses PAUSES_FULL; nothing is changed.
  Mirrors core.operating ]]
-- @include lib/rules
args.count(10)
local changed = pauses.begin(ARGV[9], args.int_or_none(10, 1))
if changed == nil then return redis.error_reply('PAUSES_FULL') end
work.follow()
return request.reply({changed and 1 or 0})
