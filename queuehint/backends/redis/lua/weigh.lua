#!lua flags=allow-oom
--[[ weigh: set the number of starts a user gets in a turn.
  ARGV[9] user      str  "" for jobs without a user; ARGV[10] weight int, 1 is the default and deletes the entry
  Returns more, now, next, 1 if this changed anything.
  Refuses WEIGHTS_FULL; nothing is changed.
  Mirrors core.operating ]]
-- @include lib/rules
args.count(10)
local WEIGHTS_MAX = 1000 -- @const
local user, weight = ARGV[9], string.format('%.0f', args.int(10, 1))
local stored = redis.call('HGET', store.weights, user)
local changed = (stored or '1') ~= weight
if changed and not stored and S[WEIGHTED] >= WEIGHTS_MAX then return redis.error_reply('WEIGHTS_FULL') end
if changed then S[WEIGHTED] = S[WEIGHTED] + (stored and 0 or 1) - (weight == '1' and 1 or 0) end
work.follow()
local reply = request.reply({changed and 1 or 0})
if weight == '1' then redis.call('HDEL', store.weights, user) else redis.call('HSET', store.weights, user, weight) end
return reply
