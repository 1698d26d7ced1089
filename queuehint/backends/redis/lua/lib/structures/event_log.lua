--[[ event_log: counters per kind of event, and the last events while there is a subscriber; mirrors core.structures.event_log. ]]
local event_log = {events = {}, drops = false}

do
local is_followed = S[FOLLOWED] > 0 and S[FOLLOWED] >= NOW

-- Note a move that was made, from *old* (false: the job is new) to the state the job has now; a start before its
-- time is set.
function event_log.note(job, kind, old, cause)
  local total = TOTAL_OF[kind]
  if total then S[total] = S[total] + 1 end
  S[JOURNAL] = S[JOURNAL] + 1
  if not is_followed then return end
  local since = old == STARTED and job[STARTED_AT]
  if kind == 'started' and (not job[STARTED_AT] or job[STARTED_AT] < job[QUEUED_AT]) then since = job[QUEUED_AT] end
  event_log.events[#event_log.events + 1] = table.concat({
    kind, string.format('%.0f', NOW), old or '-', kind == 'pruned' and '-' or job[STATE], string.format('%.0f', job[NUMBER]),
    job[ATTEMPTS], since and string.format('%.0f', NOW - since) or '', job[TASK], job[POOL], job[USER], job.id,
    cause or '',
  }, '\n')
end
end
