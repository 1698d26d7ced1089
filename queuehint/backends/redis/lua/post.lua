#!lua flags=allow-oom
--[[ post: store progress, partial results, log lines and results of steps of jobs; each note is accepted or refused by itself.
  ARGV[9..]         for each note: id, token of the running job ("" for any record that is kept, and lines alone), progress
                    (opaque, "" for none), s and a result (opaque), n and "" for null or "" and "" for none, the name of a step and
                    its result (opaque), "" and "" for none, how many lines follow, and the lines
  Returns more, now, next, for each note D done, L lost, U unknown or R refused because there is no room for its step; then for each
    note that is done and has a step when the result of that name was stored, and "=" and that result if it was stored before, else "".
  Refuses STORE_FULL, where a note holds a result, or a step with which those of its job reach another 64 KiB; nothing is changed
  Mirrors core.working   Cost O(notes and lines) ]]
-- @include lib/rules
args.count(8, 1)
local LINES_MAX = 1000 -- @const
local KINDS = {s = true, n = true, [''] = true}
local STEPS_MAX, STEPS_BYTES_MAX, LOOKED_AT_BYTES = 1000, 16777216, 65536 -- @const
local verdicts, told_steps, at, has_result = {}, {}, 9, false

-- Append the lines between two arguments to a job's log.
local function log(job, first, last)
  local logged = plan.logs[job.id] or {}
  for place = math.max(first, last - LINES_MAX + 1), last do logged[#logged + 1] = ARGV[place] end
  plan.logs[job.id] = logged
  -- A count above LINES_MAX says that lines are missing.
  job[LOGS] = math.min(job[LOGS] + last - first + 1, LINES_MAX + 1)
end

-- Keep the result of a step, unless one of its name is kept, and say which; false if there is no room for it.
local function keep_step(job, name, result)
  local added = plan.steps[job.id] or {}
  local kept = added['=' .. name] or redis.call('HGET', store.steps(job.id), '=' .. name)
  if kept and job[STEPS] > 0 then
    local space = string.find(kept, ' ', 1, true)
    told_steps[#told_steps + 1], told_steps[#told_steps + 2] = string.sub(kept, 1, space - 1), '=' .. string.sub(kept, space + 1)
    return true
  end
  local number, bytes = job[STEPS] + 1, job[STEP_BYTES] + #name + #result
  if number > STEPS_MAX or bytes > STEPS_BYTES_MAX then return false end
  -- Reading how much memory is used costs more than storing a step: a job that is short of 64 KiB is not worth it.
  if bytes % LOOKED_AT_BYTES < bytes - job[STEP_BYTES] then has_result = true end
  local now_text = string.format('%d', NOW)
  added['n' .. number], added['=' .. name] = now_text .. ' ' .. name, now_text .. ' ' .. result
  plan.steps[job.id], job[STEPS], job[STEP_BYTES] = added, number, bytes
  told_steps[#told_steps + 1], told_steps[#told_steps + 2] = now_text, ''
  return true
end

while at <= #ARGV do
  args.count(at + 7, 1)
  local token, kind, step, lines = ARGV[at + 1], args.one_of(at + 3, KINDS), ARGV[at + 5], args.int(at + 7)
  local first, last = at + 8, at + 7 + lines
  args.count(last, 1)
  has_result = has_result or kind == 's'
  if token == '' and (ARGV[at + 2] ~= '' or kind ~= '' or step ~= '') then args.refuse(at + 1) end
  local job, verdict = jobs.find(ARGV[at]), 'D'
  if job and token ~= '' and (job[STATE] ~= STARTED or job[TOKEN] ~= token) then job = false end
  if not job then
    verdict = token == '' and 'U' or 'L'
  elseif step ~= '' and not keep_step(job, step, ARGV[at + 6]) then
    verdict = 'R'
  else
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
  verdicts[#verdicts + 1] = verdict
  at = last + 1
end
-- The server itself refuses a script that adds by a flag of it; without a result this one has to go on.
if has_result and memory.used_share() >= 1 then return redis.error_reply('STORE_FULL') end
return request.reply({table.concat(verdicts), unpack(told_steps)})
