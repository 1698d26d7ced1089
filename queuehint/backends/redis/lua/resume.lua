#!lua flags=allow-oom
--[[ resume: undo the pause of this path, not of those above or below it.
  ARGV[9] path      str  the gate key
  Returns more, now, next, 1 if this changed anything.
  Mirrors core.operating ]]
-- @include lib/rules
args.count(9)
local pause = redis.call('HGET', store.pauses, ARGV[9])
if pause then
  S[PAUSED] = S[PAUSED] - 1
  work.push({'u', tonumber(pause)})
end
work.follow()
local reply = request.reply({pause and 1 or 0})
if pause then redis.call('HDEL', store.pauses, ARGV[9]) end
return reply
