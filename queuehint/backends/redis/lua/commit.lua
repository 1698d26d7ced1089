#!lua flags=allow-oom
--[[ commit: have all parts of a submission take effect at once.
  KEYS[1] root      str  namespace root with its hash tag, "{qh:default}"; lib/request/keys builds every other key from it
  KEYS[2] meta      str  the only key that always exists: see conversation.py
  ARGV[1] now_ms    int  the time, for tests only; "" asks the server
  ARGV[2] lane      str  the session the request belongs to, "" for none; ARGV[3] request int, its number there
  ARGV[4..7]        int  how long records are kept: finished, failed, canceled, with a service (lib/jobs/transitions); ms
  ARGV[8] budget    int  units of following work
  ARGV[9] staged    str  what the parts have in common; ARGV[10] flow str  whose jobs they all are, "" for none
  Returns more, now, next, how many jobs.
  Refuses FLOW_GONE, FLOW_EXISTS: it has no parts, was committed, or its parts have expired; the flow has other jobs.   Mirrors core.engine   Cost: the budget ]]
-- @include lib/rules
-- @include lib/structures/flow_counts
args.count(10)
local start = jobs.of(START_MARK .. ARGV[9])
if not start or OVER[start[STATE]] then return redis.error_reply('FLOW_GONE') end
if ARGV[10] ~= '' and edges.count(start.id) > 0 and flow_counts.visible(ARGV[10]) > 0 then return redis.error_reply('FLOW_EXISTS') end
local staged = transitions.commit(start)
S[ENQUEUED_IN_ALL] = S[ENQUEUED_IN_ALL] + staged
work.follow()
return request.reply('commit', {staged})
