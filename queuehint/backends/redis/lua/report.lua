#!lua flags=allow-oom
--[[ report: store the progress of a running job.
  ARGV[9] id, ARGV[10] token, ARGV[11] progress (opaque)
  Returns more, now, next, D done or L lost.
  Mirrors core.working ]]
-- @include lib/rules
args.count(11)
local job = jobs.of(ARGV[9])
local held = job and job[STATE] == STARTED and job[TOKEN] == ARGV[10]
if held then
  plan.progress[job.id] = ARGV[11]
  job[REPORTED], job[VERSION] = true, job[VERSION] + 1
  jobs.dirty[job.id] = job
  event_log.note(job, 'progressed', STARTED, '', ARGV[11])
end
return request.reply({held and 'D' or 'L'})
