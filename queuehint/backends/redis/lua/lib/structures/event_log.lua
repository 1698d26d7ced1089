--[[ event_log: counters per kind of event, and the last events while there is a subscriber; mirrors core.structures.event_log. ]]
-- `error` is that of an attempt whose end is noted next: its type and its message.
local event_log = {events = {}, drops = false, error = false}

do
local ERROR_BYTES_MAX = 1024 -- @const
local OF_ERRORS = {retried = true, failed = true, lost = true}
local is_followed = S[FOLLOWED] > 0 and S[FOLLOWED] >= NOW

-- Append the event of a transition from *old* (false: the job is new) to the job's state, or of progress; call it for a start
-- before its time is set. Names hold no control characters; the lengths of the cause and the error's type stand before them.
function event_log.note(job, kind, old, cause, progress)
  local total = TOTAL_OF[kind]
  if total then S[total] = S[total] + 1 end
  S[JOURNAL] = S[JOURNAL] + 1
  if not is_followed then return end
  local since = old == STARTED and not progress and job[STARTED_AT]
  local error_type, error_message = false, progress or ''
  if OF_ERRORS[kind] and event_log.error then
    error_type = string.sub(event_log.error[1], 1, ERROR_BYTES_MAX)
    error_message = string.sub(event_log.error[2], 1, ERROR_BYTES_MAX)
    event_log.error = false
  end
  cause = cause or ''
  if kind == 'started' and (not job[STARTED_AT] or job[STARTED_AT] < job[QUEUED_AT]) then since = job[QUEUED_AT] end
  event_log.events[#event_log.events + 1] = table.concat({
    kind, (string.gsub(job[CLAIMS], '\n', '\t')), job[USER], job[FLOW] or '', string.format('%.0f', NOW), old or '-',
    kind == 'pruned' and '-' or job[STATE], string.format('%.0f', job[NUMBER]), job[ATTEMPTS],
    since and string.format('%.0f', NOW - since) or '', job[TASK], job[POOL], job[SERVICE], job.id, #cause, error_type and #error_type or '',
    cause .. (error_type or '') .. error_message,
  }, '\n')
end
end
