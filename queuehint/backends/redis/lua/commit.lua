#!lua flags=allow-oom
--[[ commit: make all parts of a submission take effect at once.
  ARGV[9] staged    str  the id shared by the parts; ARGV[10] flow str  the flow of all the jobs, "" for none
  ARGV[11] flow_timeout_ms int "" for none
  Returns more, now, next, how many jobs.
  Refuses FLOW_GONE, FLOW_EXISTS: it has no parts, was committed, or its parts have expired; the flow has other jobs.
  Mirrors core.producing   Cost: the budget ]]
-- @include lib/rules
-- @include lib/structures/flow_counts
args.count(11)
local start = jobs.of(START_MARK .. ARGV[9])
if not start or OVER[start[STATE]] then return redis.error_reply('FLOW_GONE') end
if ARGV[10] ~= '' and edges.count(start.id) > 0 and flow_counts.visible(ARGV[10]) > 0 then return redis.error_reply('FLOW_EXISTS') end
local staged = staging.commit(start)
S[ENQUEUED_IN_ALL] = S[ENQUEUED_IN_ALL] + staged
if ARGV[10] ~= '' and staged > 0 then
  local deadline_id = staging.set_timeout(ARGV[10], args.int_or_none(11))
  if deadline_id then plan.specs[deadline_id] = START_SPEC end
end
work.follow()
-- Leftover work is left to other calls: a sleeping worker continues it.
request.leaves_work = true
return request.reply({staged})
