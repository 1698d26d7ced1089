#!lua
--[[ depend: add a portion of dependencies to a job of a submission in parts.
  ARGV[9] staged    str  the id shared by the parts; ARGV[10] id; ARGV[11] portion int  one more than that of the last
  ARGV[12] needs    str  the policies and the ids of up to 1 000 jobs, one a line
  Returns more, now, next, 1 if the job is one of the submission and has not got the portion yet.
  Refuses FLOW_GONE: the submission has no parts, was committed, lost a job to another enqueue, or its parts have expired;
    UNKNOWN_DEPENDENCY at id, CYCLE at id; nothing is changed.
  Mirrors core.producing and core.refusals   Cost O(dependencies) ]]
-- @include lib/rules
args.count(12)
local STAGED_KEPT_MS = 600000 -- @const
local staged, portion = ARGV[9], args.int(11, 1)
local start = jobs.of(START_MARK .. staged)
if not start or OVER[start[STATE]] then return redis.error_reply('FLOW_GONE') end
local job = jobs.of(ARGV[10])
local is_next = job and job[STAGED] == staged and portion == (job[PORTIONS] or 0) + 1

-- Why a job cannot depend on these; nil if it can.
local function refusal(ids)
  for _, id in ipairs(ids) do
    local other = jobs.of(id)
    local is_part = other and other[STAGED] == staged
    if not jobs.is_signal(id) and (not other or other[GONE] or (jobs.is_hidden(other) and not is_part)) then return 'UNKNOWN_DEPENDENCY 0 ' .. id end
    if is_part and other[CAME] >= job[NUMBER] then return 'CYCLE 0 ' .. id end
  end
end

if is_next then
  local ids = {}
  for line in string.gmatch(ARGV[12], '[^\n]+') do
    if not string.find(line, '^[dwcf][dwcf][dwcf]k .') then args.refuse('needs') end
    ids[#ids + 1] = string.sub(line, 6)
  end
  jobs.prefetch(ids)
  local refused = refusal(ids)
  if refused then return redis.error_reply(refused) end
  staging.depend(job, ARGV[12])
end
timers.set_expiry(start, NOW + STAGED_KEPT_MS)
work.follow()
-- Leftover work is left to other calls: a sleeping worker continues it.
request.leaves_work = true
return request.reply({is_next and 1 or 0})
