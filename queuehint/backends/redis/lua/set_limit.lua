#!lua flags=allow-oom
--[[ set_limit: put a limit in place of the one its path has, if it has one; one that limits nothing takes that away.
  KEYS[1] root      str  namespace root with its hash tag, "{qh:default}"; lib/request/keys builds every other key from it
  KEYS[2] meta      str  the only key that always exists: see conversation.py
  ARGV[1] now_ms    int  the time, for tests only; "" asks the server
  ARGV[2] lane      str  the session the request belongs to, "" for none; ARGV[3] request int, its number there
  ARGV[4..7]        int  how long records are kept: finished, failed, canceled, with a service; ms
  ARGV[8] budget    int  units of following work
  ARGV[9] field     str  see lib/structures/limits; ARGV[10] most, ARGV[11] tokens, ARGV[12] per_ms, ARGV[13] max_pending, ints, "" none
  Returns more, now, next, 1 if this changed anything.
  Refuses LIMITS_FULL; nothing is changed.   Mirrors core.structures.limits   Cost O(executing jobs) ]]
-- @include lib/rules
args.count(13)
if ARGV[9] ~= '-' then args.like(9, '^[=/]') end
local tokens, per_ms = args.int_or_none(11, 1), args.int_or_none(12, 1)
if not tokens ~= not per_ms then args.refuse(12) end
local changed = limits.set(ARGV[9], args.int_or_none(10), tokens, per_ms, args.int_or_none(13))
if changed == nil then return redis.error_reply('LIMITS_FULL') end
work.follow()
return request.reply('set_limit', {changed and 1 or 0})
