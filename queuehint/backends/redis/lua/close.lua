#!lua flags=allow-oom
--[[ close: refuse new jobs at or below a path.
  ARGV[9] path      str  the gate key
  Returns more, now, next, 1 if this changed anything.
  Mirrors core.operating ]]
-- @include lib/rules
args.count(9)
local changed = redis.call('SISMEMBER', store.closed, ARGV[9]) == 0
if changed then S[CLOSED_PATHS] = S[CLOSED_PATHS] + 1 end
work.follow()
local reply = request.reply({changed and 1 or 0})
if changed then redis.call('SADD', store.closed, ARGV[9]) end
return reply
