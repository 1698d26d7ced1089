--[[ records: all that is known of a job, as a flat list of strings and two lists; and a list of its steps, if it has any. ]]
local function text(value) return value and (type(value) == 'number' and string.format('%.0f', value) or value) or '' end

local function record_of(id, job)
  local errors, logs = {}, {}
  if job[ERRORS] > 0 then
    for at, packed in ipairs(redis.call('LRANGE', store.errors(id), 0, -1)) do
      local error = cmsgpack.unpack(packed)
      errors[at] = {error[1], error[2], error[3], error[4], error[5] and 't' .. error[5] or ''}
    end
  end
  if job[LOGS] > 0 then logs = redis.call('LRANGE', store.log(id), 0, -1) end
  local steps = nil
  if job[STEPS] > 0 then
    steps = {}
    for number = 1, job[STEPS] do steps[number] = 'n' .. number end
    steps = redis.call('HMGET', store.steps(id), unpack(steps))
    -- A lost one is for the doctor.
    for number = 1, #steps do steps[number] = steps[number] or '0 ' end
  end
  return {
    id, job[STATE], text(job[NUMBER]), text(job[SEQ]), text(job[VERSION]), text(job[ATTEMPTS]), text(job[LOSSES]),
    text(job[TOKEN]), text(job[WORKER]), text(job[ENQUEUED]), text(job[DUE_AT]), text(job[QUEUED_AT]),
    text(job[STARTED_AT]), text(job[ENDED]), job[CANCEL] and '=' .. job[CANCEL] or '', job[CAUSE] and '=' .. job[CAUSE] or '',
    job[RESULT] or '-', text(job[LOGS]), text(job[LEVEL] or job[PRIORITY]),
    -- A staged job waits for the commit alone, which is no job.
    text((OVER[job[STATE]] or job[STAGED]) and 0 or job[BLOCKED]),
    text(job[PRIORITY]), job[POOL], job[USER], job[TASK], job[SERVICE], job[KEY] or '', text(job[PRESENCE]), job[POLICY], job[CLAIMS],
    heads.spec(job), job[RESULT] == 's' and redis.call('HGET', store.results, id) or '',
    job[REPORTED] and redis.call('HGET', store.progress, id) or '', errors, logs, job[HISTORY] or '', steps,
  }
end

local RECORDS_BYTES_MAX, SPEC_AT = 4194304, 30 -- @const
local bytes_told = 0

-- Whether a reply has room for a record beside those before it: what is told of jobs takes a few MiB at most.
local function fits(record)
  for at = SPEC_AT, #record do
    local value = record[at]
    if type(value) == 'string' then
      bytes_told = bytes_told + #value
    else
      for _, item in ipairs(value) do
        -- Of an error its message and its traceback; or a line of the log.
        bytes_told = bytes_told + (type(item) == 'string' and #item or #item[4] + #item[5])
      end
    end
  end
  return bytes_told <= RECORDS_BYTES_MAX
end
