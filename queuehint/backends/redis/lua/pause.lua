#!lua flags=allow-oom
--[[ pause: stop starts at or below a path.
  ARGV[9] path      str  the gate key
  Returns more, now, next, 1 if this changed anything.
  Mirrors core.operating ]]
-- @include lib/rules
args.count(9)
local changed = redis.call('HEXISTS', store.pauses, ARGV[9]) == 0
if changed then S[PAUSE], S[PAUSED] = S[PAUSE] + 1, S[PAUSED] + 1 end
work.follow()
local pause = S[PAUSE]
local reply = request.reply({changed and 1 or 0})
if changed then redis.call('HSET', store.pauses, ARGV[9], pause) end
return reply
