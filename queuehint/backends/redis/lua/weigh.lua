#!lua flags=allow-oom
--[[ weigh: give a user up to so many starts a turn.
  KEYS[1] root      str  namespace root with its hash tag, "{qh:default}"; lib/request/keys builds every other key from it
  KEYS[2] meta      str  the only key that always exists: see conversation.py
  ARGV[1] now_ms    int  the time, for tests only; "" asks the server
  ARGV[2] lane      str  the session the request belongs to, "" for none; ARGV[3] request int, its number there
  ARGV[4..7]        int  how long records are kept: finished, failed, canceled, with a service; ms
  ARGV[8] budget    int  units of following work
  ARGV[9] user      str  "" for jobs without a user; ARGV[10] weight int, 1 forgets it
  Returns more, now, next, 1 if this changed anything.
  Refuses WEIGHTS_FULL; nothing is changed.   Mirrors core.engine ]]
-- @include lib/rules
args.count(10)
local WEIGHTS_MAX = 1000 -- @const
local user, weight = ARGV[9], string.format('%.0f', args.int(10, 1))
local stored = redis.call('HGET', store.weights, user)
local changed = (stored or '1') ~= weight
if changed and not stored and S[WEIGHTED] >= WEIGHTS_MAX then return redis.error_reply('WEIGHTS_FULL') end
if changed then S[WEIGHTED] = S[WEIGHTED] + (stored and 0 or 1) - (weight == '1' and 1 or 0) end
work.follow()
local reply = request.reply('weigh', {changed and 1 or 0})
if weight == '1' then redis.call('HDEL', store.weights, user) else redis.call('HSET', store.weights, user, weight) end
return reply
