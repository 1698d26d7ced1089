#!lua flags=no-writes,allow-oom
--[[ count_flow: how many jobs a flow has, by state.
  KEYS[1] root      str  namespace root with its hash tag, "{qh:default}"; lib/request/keys builds every other key from it
  KEYS[2] meta      str  the only key that always exists: see conversation.py
  ARGV[1] now_ms    int  the time, for tests only; "" asks the server
  ARGV[2..8]             not used: as for changes
  ARGV[9] flow      str
  Returns seven numbers, in the order of the states.   Mirrors core.questions   Cost O(log jobs) ]]
-- @include lib/questions
-- @include lib/structures/flow_counts
args.count(9)
return flow_counts.by_state(ARGV[9])
