#!lua flags=allow-oom
--[[ renew: extend leases, and the presence leases of waiting callers.
  ARGV[9] lease_ms  int  from now
  ARGV[10] begun    int  1 if the code of these jobs begins now, so that from here on losing them counts
  ARGV[11] blocked_ms int for how long code has blocked the event loop of the worker that runs these jobs; 0 if none does
  ARGV[12..]        two for each lease: id, token
  Returns more, now, next, and a verdict for each lease: D done, C asked to stop, L lost.
  Mirrors core.working   Cost O(log timers) a lease, and what follows ]]
-- @include lib/rules
args.count(11, 2)
local begun = args.flag(10)
local verdicts, lease_ms, blocked_ms, renews = {}, args.int(9), args.int(11), false
for at = 12, #ARGV, 2 do
  local job = jobs.of(ARGV[at])
  local waits = job and job[STATE] == QUEUED and job[PRESENCE]
  if not job or not (waits or job[STATE] == STARTED) or job[TOKEN] ~= ARGV[at + 1] then
    verdicts[#verdicts + 1] = 'L'
  else
    if begun then job[TO_BEGIN] = false end
    if blocked_ms > 0 then job[LOOP_BLOCKED] = NOW - blocked_ms
    elseif job[LOOP_BLOCKED] then job[LOOP_BLOCKED] = false end
    timers.set(job, LEASE, NOW + lease_ms)
    renews = true
    verdicts[#verdicts + 1] = job[CANCEL] and 'C' or 'D'
    if job[CANCEL] then transitions.forget_cancellation(job) end
  end
end
if renews then epoch.see_lease(lease_ms) end
work.follow()
return request.reply({table.concat(verdicts)})
