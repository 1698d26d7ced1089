#!lua flags=no-writes,allow-oom
--[[ can_dequeue: return whether a claim conflicts with no executing job.
  ARGV[9] path      str  the gate key; ARGV[10] s shared, e exclusive
  Returns 1 or 0.
  Mirrors core.asking.why   Cost O(executing jobs) ]]
-- @include lib/questions
-- @include lib/asking/running
args.count(10)
local asked = form.claims((args.like(10, '^[es]$') == 's' and 's' or 'x') .. ARGV[9])[1]
local free = true
each_running(function(claim)
  if not (claim.shared and asked.shared) then
    local depth = math.min(#claim.keys, #asked.keys)
    free = free and claim.keys[depth] ~= asked.keys[depth]
  end
end)
return {free and 1 or 0}
