#!lua
--[[ put_schedule: store a schedule, in place of that of its name if they differ.
  KEYS[1] root      str  namespace root with its hash tag, "{qh:default}"; lib/request/keys builds every other key from it
  KEYS[2] meta      str  the only key that always exists: see conversation.py
  ARGV[1] now_ms    int  the time, for tests only; "" asks the server
  ARGV[2] lane      str  the session the request belongs to, "" for none; ARGV[3] request int, its number there
  ARGV[4..7]        int  how long records are kept: finished, failed, canceled, with a service; ms
  ARGV[8] budget    int  units of following work
  ARGV[9] name      str  ARGV[10] next_ms int, when it is due first, "" for never
  ARGV[11] head     str  ARGV[12] spec opaque; as of a job, see enqueue; ARGV[13] recurrence opaque
  Returns more, now, next, 1 if this changed anything.   Refuses SCHEDULES_FULL   Mirrors core.schedules ]]
-- @include lib/rules
-- @include lib/request/asked
args.count(13)
-- It is what its jobs will be.
parse_asked(11)
local SCHEDULES_MAX = 10000 -- @const
local name, next_ms = ARGV[9], args.int_or_none(10, -INT_MAX)
local schedule = schedules.of(name)
local is_same = schedule and schedule[ASKED_HEAD] == ARGV[11] and schedule[ASKED_SPEC] == ARGV[12] and schedule[RECURRENCE] == ARGV[13]
if not schedule and S[SCHEDULES] >= SCHEDULES_MAX then return redis.error_reply('SCHEDULES_FULL') end
if not is_same then
  schedule = schedule or {0, false, false, false, false}
  schedule[ASKED_HEAD], schedule[ASKED_SPEC], schedule[RECURRENCE] = ARGV[11], ARGV[12], ARGV[13]
  schedules.set(name, schedule, next_ms)
end
work.follow()
return request.reply('put_schedule', {is_same and 0 or 1})
