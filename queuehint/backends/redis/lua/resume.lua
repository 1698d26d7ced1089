#!lua flags=allow-oom
--[[ resume: undo the pause of this very path.
  KEYS[1] root      str  namespace root with its hash tag, "{qh:default}"; lib/request/keys builds every other key from it
  KEYS[2] meta      str  the only key that always exists: see conversation.py
  ARGV[1] now_ms    int  the time, for tests only; "" asks the server
  ARGV[2] lane      str  the session the request belongs to, "" for none; ARGV[3] request int, its number there
  ARGV[4..7]        int  how long records are kept: finished, failed, canceled, with a service (lib/jobs/transitions); ms
  ARGV[8] budget    int  units of following work
  ARGV[9] path      str  the gate key
  Returns more, now, next, 1 if this changed anything.   Mirrors core.engine ]]
-- @include lib/rules
args.count(9)
local pause = redis.call('HGET', store.pauses, ARGV[9])
if pause then
  S[PAUSED] = S[PAUSED] - 1
  work.push({'u', tonumber(pause)})
end
work.follow()
local reply = request.reply('resume', {pause and 1 or 0})
if pause then redis.call('HDEL', store.pauses, ARGV[9]) end
return reply
