#!lua
--[[ update: store what a running job has so far as its result.
  KEYS[1] root      str  namespace root with its hash tag, "{qh:default}"; lib/request/keys builds every other key from it
  KEYS[2] meta      str  the only key that always exists: see conversation.py
  ARGV[1] now_ms    int  the time, for tests only; "" asks the server
  ARGV[2] lane      str  the session the request belongs to, "" for none; ARGV[3] request int, its number there
  ARGV[4..7]        int  how long records are kept: finished, failed, canceled, with a service (lib/jobs/transitions); ms
  ARGV[8] budget    int  units of following work
  ARGV[9] id, ARGV[10] token, ARGV[11] 1 if the result is null, ARGV[12] result (opaque)
  Returns more, now, next, D done or L lost.   Mirrors core.engine ]]
-- @include lib/rules
args.count(12)
local is_null = args.flag(11)
local job = jobs.of(ARGV[9])
local held = job and job[STATE] == STARTED and job[TOKEN] == ARGV[10]
if held then
  if is_null then
    job[RESULT] = 'n'
  else
    job[RESULT], plan.results[job.id] = 's', ARGV[12]
  end
  job[VERSION] = job[VERSION] + 1
  jobs.dirty[job.id] = job
end
return request.reply('update', {held and 'D' or 'L'})
