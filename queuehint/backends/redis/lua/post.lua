#!lua flags=allow-oom
--[[ post: store progress, partial results and log lines of jobs; each note is accepted or refused by itself.
  ARGV[9..]         for each note: id, token of the running job ("" for any record that is kept, and lines alone), progress
                    (opaque, "" for none), s and a result (opaque), n and "" for null or "" and "" for none, how many lines
                    follow, and the lines
  Returns more, now, next, and for each note D done, L lost or U unknown.
  Refuses STORE_FULL, where a note holds a result; nothing is changed
  Mirrors core.working   Cost O(notes and lines) ]]
-- @include lib/rules
args.count(8, 1)
local LINES_MAX = 1000 -- @const
local KINDS = {s = true, n = true, [''] = true}
local verdicts, at, has_result = {}, 9, false

-- Append the lines between two arguments to a job's log.
local function log(job, first, last)
  local logged = plan.logs[job.id] or {}
  for place = math.max(first, last - LINES_MAX + 1), last do logged[#logged + 1] = ARGV[place] end
  plan.logs[job.id] = logged
  -- A count above LINES_MAX says that lines are missing.
  job[LOGS] = math.min(job[LOGS] + last - first + 1, LINES_MAX + 1)
end

while at <= #ARGV do
  args.count(at + 5, 1)
  local token, kind, lines = ARGV[at + 1], args.one_of(at + 3, KINDS), args.int(at + 5)
  local first, last = at + 6, at + 5 + lines
  args.count(last, 1)
  has_result = has_result or kind == 's'
  if token == '' and (ARGV[at + 2] ~= '' or kind ~= '') then args.refuse(at + 1) end
  local job = jobs.find(ARGV[at])
  if job and token ~= '' and (job[STATE] ~= STARTED or job[TOKEN] ~= token) then job = false end
  if job then
    if ARGV[at + 2] ~= '' then plan.progress[job.id], job[REPORTED] = ARGV[at + 2], true end
    if kind == 's' then
      job[RESULT], plan.results[job.id] = 's', ARGV[at + 4]
    elseif kind == 'n' then
      job[RESULT], plan.results[job.id] = 'n', nil
    end
    if lines > 0 then log(job, first, last) end
    job[VERSION] = job[VERSION] + 1
    jobs.dirty[job.id] = job
    if ARGV[at + 2] ~= '' then event_log.note(job, 'progressed', STARTED, '', ARGV[at + 2]) end
  end
  verdicts[#verdicts + 1] = job and 'D' or token == '' and 'U' or 'L'
  at = last + 1
end
-- The server itself refuses a script that adds by a flag of it; without a result this one has to go on.
if has_result and memory.used_share() >= 1 then return redis.error_reply('STORE_FULL') end
return request.reply({table.concat(verdicts)})
