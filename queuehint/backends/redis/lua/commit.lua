#!lua flags=allow-oom
--[[ commit: have all parts of a submission take effect at once.
  ARGV[9] staged    str  what the parts have in common; ARGV[10] flow str  whose jobs they all are, "" for none
  Returns more, now, next, how many jobs.
  Refuses FLOW_GONE, FLOW_EXISTS: it has no parts, was committed, or its parts have expired; the flow has other jobs.
  Mirrors core.producing   Cost: the budget ]]
-- @include lib/rules
-- @include lib/structures/flow_counts
args.count(10)
local start = jobs.of(START_MARK .. ARGV[9])
if not start or OVER[start[STATE]] then return redis.error_reply('FLOW_GONE') end
if ARGV[10] ~= '' and edges.count(start.id) > 0 and flow_counts.visible(ARGV[10]) > 0 then return redis.error_reply('FLOW_EXISTS') end
local staged = staging.commit(start)
S[ENQUEUED_IN_ALL] = S[ENQUEUED_IN_ALL] + staged
work.follow()
-- What it left over is left to others: a worker that sleeps goes on with it.
request.leaves_work = true
return request.reply({staged})
