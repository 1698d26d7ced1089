#!lua
--[[ update: store the partial result of a running job.
  ARGV[9] id, ARGV[10] token, ARGV[11] 1 if the result is null, ARGV[12] result (opaque)
  Returns more, now, next, D done or L lost.
  Mirrors core.working ]]
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
return request.reply({held and 'D' or 'L'})
