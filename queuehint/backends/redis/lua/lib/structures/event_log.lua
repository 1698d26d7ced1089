--[[ event_log: counters per kind of event, and the last events while there is a subscriber; mirrors core.structures.event_log. ]]
-- `error` is that of an attempt whose end is noted next: its type and its message.
-- `bytes` is how much the new events count together; see values/event.py.
local event_log = {events = {}, bytes = 0, drops = false, error = false}

do
local ERROR_BYTES_MAX, EVENT_BYTES = 1024, 256 -- @const
local OF_ERRORS = {retried = true, failed = true, lost = true}
local is_followed = S[FOLLOWED] > 0 and S[FOLLOWED] >= NOW

-- The first bytes of a text, in whole characters.
local function brief(text)
  if #text <= ERROR_BYTES_MAX then return text end
  local last = ERROR_BYTES_MAX
  while last > ERROR_BYTES_MAX - 4 and string.find(string.sub(text, last + 1, last + 1), '[\128-\191]') do last = last - 1 end
  return string.sub(text, 1, last)
end

-- Append the event of a transition from *old* (false: the job is new) to the job's state, or of progress; call it for a start
-- before its time is set. What it counts in the log stands first. Names hold no control characters; the lengths of the cause and
-- the error's type stand before them.
function event_log.note(job, kind, old, cause, progress)
  local total = TOTAL_OF[kind]
  if total then S[total] = S[total] + 1 end
  S[JOURNAL] = S[JOURNAL] + 1
  if not is_followed then return end
  local since = old == STARTED and not progress and job[STARTED_AT]
  local error_type, error_message = false, progress or ''
  if OF_ERRORS[kind] and event_log.error then
    error_type, error_message = brief(event_log.error[1]), brief(event_log.error[2])
    event_log.error = false
  end
  cause = cause or ''
  if kind == 'started' and (not job[STARTED_AT] or job[STARTED_AT] < job[QUEUED_AT]) then since = job[QUEUED_AT] end
  local size = EVENT_BYTES + #job[CLAIMS] + #job[USER] + #(job[FLOW] or '') + #job[TASK] + #job[POOL] + #job[SERVICE] + #job.id
    + #cause + #(error_type or '') + #error_message
  event_log.bytes = event_log.bytes + size
  event_log.events[#event_log.events + 1] = table.concat({
    string.format('%d', size), kind, (string.gsub(job[CLAIMS], '\n', '\t')), job[USER], job[FLOW] or '', string.format('%.0f', NOW), old or '-',
    kind == 'pruned' and '-' or job[STATE], string.format('%.0f', job[NUMBER]), job[ATTEMPTS],
    since and string.format('%.0f', NOW - since) or '', job[TASK], job[POOL], job[SERVICE], job.id, #cause, error_type and #error_type or '',
    cause .. (error_type or '') .. error_message,
  }, '\n')
end
end
