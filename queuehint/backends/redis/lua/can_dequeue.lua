#!lua flags=no-writes,allow-oom
--[[ can_dequeue: whether nothing executing conflicts with a claim.
  KEYS[1] root      str  namespace root with its hash tag, "{qh:default}"; lib/keys builds every other key from it
  ARGV[1] now_ms    int  the time, for tests only; "" asks the server
  ARGV[2..8]             not used: as for changes
  ARGV[9] path      str  the gate key; ARGV[10] s shared, e exclusive
  Returns 1 or 0.   Mirrors core.registry   Cost O(depth) ]]
-- @include lib/questions
return {can_execute(ARGV[9], ARGV[10] == 's') and 1 or 0}
