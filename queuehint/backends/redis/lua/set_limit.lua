#!lua flags=allow-oom
--[[ set_limit: set or replace a limit, of a path, the namespace, a task or a pool; one that limits nothing removes it.
  ARGV[9] field     str  see lib/structures/limits; ARGV[10] most, ARGV[11] tokens, ARGV[12] per_ms, ARGV[13] max_pending, ARGV[14] burst, ints, "" none
  Returns more, now, next, 1 if this changed anything.
  Refuses LIMITS_FULL; nothing is changed.
  Mirrors core.operating   Cost O(executing jobs, and counters of the limit that is replaced) ]]
-- @include lib/rules
args.count(14)
if ARGV[9] ~= '-' then args.like(9, '^[=/tp]') end
local tokens, per_ms = args.int_or_none(11, 1), args.int_or_none(12, 1)
local burst = args.int_or_none(14, 1)
if not tokens ~= not per_ms then args.refuse(12) end
if burst and not tokens then args.refuse(14) end
local changed = limits.set(ARGV[9], args.int_or_none(10), tokens, per_ms, args.int_or_none(13), burst)
if changed == nil then return redis.error_reply('LIMITS_FULL') end
work.follow()
return request.reply({changed and 1 or 0})
