#!lua flags=allow-oom
--[[ post: store progress, partial results, log lines and results of steps of jobs; each note is accepted or refused by itself.
  ARGV[9..]         for each note: id, token of the running job ("" for any record that is kept, and lines alone), progress
                    (opaque, "" for none), s and a result (opaque), n and "" for null or "" and "" for none, the name of a step and
                    its result (opaque), "" and "" for none, how many lines follow, and the lines
  Returns more, now, next, for each note D done, K done where a result of the name of its step was stored before, L lost, U unknown
    or R refused because there is no room for its step; then for each K when that result was stored, and that result.
  Refuses STORE_FULL, where a note holds a result, or a step with which those of its job reach another 64 KiB; nothing is changed
  Mirrors core.working   Cost O(notes and lines) ]]
-- @include lib/rules
args.count(8, 1)
local LINES_MAX = 1000 -- @const
local KINDS = {s = true, n = true, [''] = true}
local STEPS_MAX, STEPS_BYTES_MAX, LOOKED_AT_BYTES = 1000, 16777216, 65536 -- @const
local verdicts, steps, told, next_at, has_result = {}, {}, {}, 9, false

-- Append the lines between two arguments to a job's log.
local function log(job, first, last)
  local logged = plan.logs[job.id] or {}
  for place = math.max(first, last - LINES_MAX + 1), last do logged[#logged + 1] = ARGV[place] end
  plan.logs[job.id] = logged
  -- A count above LINES_MAX says that lines are missing.
  job[LOGS] = math.min(job[LOGS] + last - first + 1, LINES_MAX + 1)
end

-- When the result of a step of some name was stored, that is: by an attempt before, or by a note before of this call.
local function stored_at(job, redis_key, name)
  local fields = {}
  for number = 1, job[STEPS] do fields[number] = 'n' .. number end
  for _, named in ipairs(redis.call('HMGET', redis_key, unpack(fields))) do
    if named and string.match(named, ' (.*)$') == name then return string.match(named, '^%d+') end
  end
  return string.format('%d', NOW)
end

-- Keep the result of a step, unless one of its name is kept; return the verdict of its note. What is added to the steps of a job is
-- the key of their hash and, behind it, fields and values; each name has its result there too, for a second note of its name.
local function keep_step(job, id, name, result)
  local added, field, number = steps[id], '=' .. name, job[STEPS]
  local redis_key = added and added[1] or store.steps(id)
  local kept = added and added[field] or redis.call('HGET', redis_key, field)
  if kept and number > 0 then
    told[#told + 1], told[#told + 2] = stored_at(job, redis_key, name), kept
    return 'K'
  end
  local more = #name + #result
  local bytes = job[STEP_BYTES] + more
  number = number + 1
  if number > STEPS_MAX or bytes > STEPS_BYTES_MAX then return 'R' end
  -- Reading how much memory is used costs more than storing a step: a job that is short of 64 KiB is not worth it.
  if bytes % LOOKED_AT_BYTES < more then has_result = true end
  job[STEPS] = number
  job[STEP_BYTES] = bytes
  local named = string.format('%d %s', NOW, name)
  if added then
    local size = #added
    added[size + 1], added[size + 2], added[size + 3], added[size + 4] = 'n' .. number, named, field, result
    added[field] = result
  else
    steps[id] = {redis_key, 'n' .. number, named, field, result, [field] = result}
  end
  return 'D'
end

while next_at <= #ARGV do
  local at = next_at
  args.count(at + 7, 1)
  local token, progress, kind, step = ARGV[at + 1], ARGV[at + 2], args.one_of(at + 3, KINDS), ARGV[at + 5]
  local first, last = at + 8, at + 7 + args.int(at + 7)
  args.count(last, 1)
  has_result = has_result or kind == 's'
  if token == '' and (progress ~= '' or kind ~= '' or step ~= '') then args.refuse(at + 1) end
  local id, verdict = ARGV[at], 'D'
  local job = jobs.find(id)
  if job and token ~= '' and (job[STATE] ~= STARTED or job[TOKEN] ~= token) then job = false end
  if not job then
    verdict = token == '' and 'U' or 'L'
  elseif step ~= '' then
    verdict = keep_step(job, id, step, ARGV[at + 6])
  end
  if job and verdict ~= 'R' then
    if kind == 's' then
      job[RESULT], plan.results[id] = 's', ARGV[at + 4]
    elseif kind == 'n' then
      job[RESULT], plan.results[id] = 'n', nil
    end
    if first <= last then log(job, first, last) end
    job[VERSION] = job[VERSION] + 1
    jobs.dirty[id] = job
    if progress ~= '' then
      plan.progress[id], job[REPORTED] = progress, true
      event_log.note(job, 'progressed', STARTED, '', progress)
    end
  end
  verdicts[#verdicts + 1] = verdict
  next_at = last + 1
end
-- The server itself refuses a script that adds by a flag of it; without a result this one has to go on.
if has_result and memory.used_share() >= 1 then return redis.error_reply('STORE_FULL') end
local reply = request.reply({table.concat(verdicts), unpack(told)})
-- Nothing is refused any more: the hash of the steps was read before.
for _, added in pairs(steps) do redis.call('HSET', unpack(added)) end
return reply
