#!lua flags=allow-oom
--[[ watch: subscribe a session to the ends of jobs, or to each change of one.
  ARGV[9] session   str  the subscriber; ARGV[10] mode: "", or "keep": no subscription, records that would expire sooner are
                         kept a minute; ARGV[11..] pairs of an id and the known version, "" for the end only
  Returns more, now, next, and for each id w while it is unfinished and has that version, o if it has ended or is
  unknown, v if it has another version. Subscriptions to each change are stored with a "~".
  The record of a job with subscribers is kept a minute after its end at least (lib/jobs/transitions). ]]
-- @include lib/rules
args.count(10, 2)
local keeps = ARGV[10] == 'keep'
if ARGV[10] ~= '' and not keeps then args.refuse(10) end
for at = 12, #ARGV, 2 do args.int_or_none(at) end
local GONE_MS, WATCHERS_ASKED_ABOUT = 60000, 8 -- @const
local answers, waits = {}, false

-- Drop silent subscribers where there are many: a live one repeats its subscription every few seconds, a killed process does not.
local function still_there(watchers)
  if #watchers < WATCHERS_ASKED_ABOUT then return watchers end
  local left = {}
  for _, session in ipairs(watchers) do
    local heard_ms = tonumber(redis.call('ZSCORE', store.sessions, form.session(session)) or nil)
    if heard_ms and heard_ms >= NOW - GONE_MS then left[#left + 1] = session end
  end
  return left
end

local function goes_soon(job)
  for _, state in ipairs({FINISHED, FAILED, CANCELED}) do
    if transitions.kept_ms(job, state) < AWAITED_KEPT_MS then return true end
  end
  return false
end

for at = 11, #ARGV, 2 do
  local job, version = jobs.of(ARGV[at]), args.int_or_none(at + 1)
  local mark = version and '~' or ''
  -- No session has this name: no client is woken.
  local session = keeps and '-' or mark .. ARGV[9]
  if not job or OVER[job[STATE]] then
    answers[#answers + 1] = 'o'
  elseif keeps and not goes_soon(job) then
    answers[#answers + 1] = 'w'
  else
    answers[#answers + 1] = version and job[VERSION] ~= version and 'v' or 'w'
    waits = true
    local watchers = job[WATCHERS] or {}
    local known = false
    for _, other in ipairs(watchers) do known = known or other == session or other == '~' .. session end
    if not known then
      local others = {}
      for _, other in ipairs(still_there(watchers)) do
        if mark .. other ~= session then others[#others + 1] = other end
      end
      watchers = others
      watchers[#watchers + 1] = session
      job[WATCHERS] = watchers
      jobs.dirty[job.id] = job
    end
  end
end
if not waits then return {0, NOW, -1, table.concat(answers)} end
local reply = request.reply({table.concat(answers)})
if not keeps then redis.call('ZADD', store.sessions, NOW, ARGV[9]) end
return reply
