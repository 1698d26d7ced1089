#!lua flags=allow-oom
--[[ report: store how far a running job is.
  KEYS[1] root      str  namespace root with its hash tag, "{qh:default}"; lib/request/keys builds every other key from it
  KEYS[2] meta      str  the only key that always exists: see conversation.py
  ARGV[1] now_ms    int  the time, for tests only; "" asks the server
  ARGV[2] lane      str  the session the request belongs to, "" for none; ARGV[3] request int, its number there
  ARGV[4..7]        int  how long records are kept: finished, failed, canceled, with a service (lib/jobs/transitions); ms
  ARGV[8] budget    int  units of following work
  ARGV[9] id, ARGV[10] token, ARGV[11] progress (opaque)
  Returns more, now, next, D done or L lost.   Mirrors core.engine ]]
-- @include lib/rules
args.count(11)
local job = jobs.of(ARGV[9])
local held = job and job[STATE] == STARTED and job[TOKEN] == ARGV[10]
if held then
  plan.progress[job.id] = ARGV[11]
  job[REPORTED], job[VERSION] = true, job[VERSION] + 1
  jobs.dirty[job.id] = job
end
return request.reply('report', {held and 'D' or 'L'})
