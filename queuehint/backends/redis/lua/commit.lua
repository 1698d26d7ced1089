#!lua flags=allow-oom
--[[ commit: make all parts of a submission take effect at once.
  ARGV[9] staged    str  the id shared by the parts; ARGV[10] jobs int  how many its parts have created; ARGV[11] portions int
                    how many were added to these by `depend`
  ARGV[12] flow     str  the flow of all the jobs, "" for none; ARGV[13] flow_timeout_ms int "" for none
  Returns more, now, next, how many jobs.
  Refuses FLOW_GONE, FLOW_EXISTS: it has no parts, or others than said, was committed, lost a job to another enqueue, or its
    parts have expired; the flow has other jobs.
  Mirrors core.producing   Cost: the budget ]]
-- @include lib/rules
-- @include lib/structures/flow_counts
args.count(13)
local flow = args.like(12, '^[^\n]*$')
local start = jobs.of(START_MARK .. ARGV[9])
if not start or OVER[start[STATE]] then return redis.error_reply('FLOW_GONE') end
if not staging.is_whole(start, args.int(10, 0), args.int(11, 0)) then return redis.error_reply('FLOW_GONE') end
if flow ~= '' and edges.count(start.id) > 0 and flow_counts.visible(flow) > 0 then return redis.error_reply('FLOW_EXISTS') end
local staged = staging.commit(start)
S[ENQUEUED_IN_ALL] = S[ENQUEUED_IN_ALL] + staged
if flow ~= '' and staged > 0 then staging.set_timeout(flow, args.int_or_none(13)) end
work.follow()
-- Leftover work is left to other calls: a sleeping worker continues it.
request.leaves_work = true
return request.reply({staged})
