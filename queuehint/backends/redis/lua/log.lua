#!lua flags=allow-oom
--[[ log: append lines to a job's log.
  ARGV[9] id, ARGV[10] token of the running job, "" for any record that is kept; ARGV[11..] lines
  Returns more, now, next, D done, L lost or U unknown.
  Mirrors core.working ]]
-- @include lib/rules
args.count(10, 1)
local LINES_MAX = 1000 -- @const
local id, token = ARGV[9], ARGV[10]
local job = jobs.find(id)
if job and token ~= '' and (job[STATE] ~= STARTED or job[TOKEN] ~= token) then job = false end
if job then
  local logged = {}
  for at = math.max(11, #ARGV - LINES_MAX + 1), #ARGV do logged[#logged + 1] = ARGV[at] end
  if #logged > 0 then plan.logs[job.id] = logged end
  -- A count above LINES_MAX says that lines are missing.
  job[LOGS], job[VERSION] = math.min(job[LOGS] + #ARGV - 10, LINES_MAX + 1), job[VERSION] + 1
  jobs.dirty[job.id] = job
end
return request.reply({job and 'D' or token == '' and 'U' or 'L'})
