#!lua flags=no-writes,allow-oom
--[[ why: reasons why a job waits.
  ARGV[9] id
  Returns a reason (lib/asking/reasons), nothing if there is no such job.
  Mirrors core.asking.why ]]
-- @include lib/questions
-- @include lib/asking/reasons
args.count(9)

local job = jobs.find(ARGV[9])
if not job then return {} end
return reply_of(job, cycle_reason(job, reason_of(job)))
