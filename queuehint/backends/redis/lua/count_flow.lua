#!lua flags=no-writes,allow-oom
--[[ count_flow: how many jobs a flow has, by state.
  ARGV[9] flow      str
  Returns seven numbers, in the order of the states.
  Mirrors core.asking.questions   Cost O(log jobs) ]]
-- @include lib/questions
-- @include lib/structures/flow_counts
args.count(9)
return flow_counts.by_state(ARGV[9])
