#!lua
--[[ put_schedule: store a schedule, in place of a different one of that name.
  ARGV[9] name      str  ARGV[10] next_ms int, when it is due first if it is new or its recurrence another, "" for never
  ARGV[11] head     str  ARGV[12] spec opaque; as of a job, see enqueue; ARGV[13] recurrence opaque
  Returns more, now, next, 1 if this changed anything.   Refuses SCHEDULES_FULL
  Mirrors core.operating ]]
-- @include lib/request/begin
-- @include lib/request/asked
-- @include lib/rules
args.count(13)
-- Checks the head as `enqueue` will check those of the jobs it fires.
parse_asked(11)
local SCHEDULES_MAX = 10000 -- @const
local name, next_ms = ARGV[9], args.int_or_none(10, -INT_MAX)
local schedule = schedules.of(name)
-- Return whether two specs ask for the same: equal, or but for arguments that share a digest.
local function is_alike(spec, other)
  if spec == other then return true end
  local digests, plain = jobs.identity(spec)
  local others, other_plain = jobs.identity(other)
  return digests and others and jobs.first_line(plain) == jobs.first_line(other_plain) and jobs.is_identical(digests, others)
end
local is_same = schedule and schedule[ASKED_HEAD] == ARGV[11] and is_alike(schedule[ASKED_SPEC], ARGV[12]) and schedule[RECURRENCE] == ARGV[13]
if not schedule and S[SCHEDULES] >= SCHEDULES_MAX then return redis.error_reply('SCHEDULES_FULL') end
if not is_same then
  -- One with the recurrence of that in place keeps its next due time.
  if schedule and schedule[RECURRENCE] == ARGV[13] then next_ms = schedule[NEXT_DUE] end
  schedule = schedule or {0, false, false, false, false}
  schedule[ASKED_HEAD], schedule[ASKED_SPEC], schedule[RECURRENCE] = ARGV[11], ARGV[12], ARGV[13]
  schedules.set(name, schedule, next_ms)
end
work.follow()
return request.reply({is_same and 0 or 1})
