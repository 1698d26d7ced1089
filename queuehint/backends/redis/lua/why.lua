#!lua flags=no-writes,allow-oom
--[[ why: what a job waits for.
  KEYS[1] root      str  namespace root with its hash tag, "{qh:default}"; lib/keys builds every other key from it
  KEYS[2] meta      str  the only key that always exists: see conversation.py
  ARGV[1] now_ms    int  the time, for tests only; "" asks the server
  ARGV[2..8]             not used: as for changes
  ARGV[9] id
  Returns a reason (lib/reasons), nothing if there is no such job.   Mirrors core.answers ]]
-- @include lib/questions
-- @include lib/reasons
local job = jobs.find(ARGV[9])
return job and reply_of(job, reason_of(job)) or {}
