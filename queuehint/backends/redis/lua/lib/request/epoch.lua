--[[ epoch: fencing tokens that never repeat, also over a failover that lost writes. A restarted server has another run id:
  a new epoch begins, and for the length of the longest lease in force nothing is reaped, because leases could not be renewed
  meanwhile. When the counter of an epoch is full the next epoch begins too, on the same server: leases stay valid.
  The longest lease in force is at most LEASE_MAX or LEASE_MAX_BEFORE. A window lasts as long as the longer of the two, so
  leases granted before the previous window have ended. ]]
local EPOCH_BEGIN_S, COUNT_END = 1577836800, 4294967296 -- @const
local epoch = {}

lazily(epoch, function()
local epoch_known = false

function epoch.know()
  if epoch_known then return end
  epoch_known = true
  local run = server_run()
  if S[RUN] == run then return end
  S[EPOCH] = math.max(S[EPOCH] + 1, math.floor(NOW / 1000) - EPOCH_BEGIN_S, 0)
  -- The count begins at the fraction of the second, so that two restarts in one second repeat no token. In tests it begins at 0.
  S[GRANTS] = ARGV[1] == '' and NOW % 1000 * 2 ^ 20 or 0
  local longest_ms = math.max(S[LEASE_MAX], S[LEASE_MAX_BEFORE])
  if S[RUN] ~= '' then S[REAP_FROM] = NOW + longest_ms end
  -- Leases in force stay in force until then.
  S[LEASE_MAX], S[LEASE_MAX_BEFORE], S[LEASES_SINCE] = 0, longest_ms, NOW
  S[RUN] = run
end

-- Note the length of a lease that is given or renewed now.
function epoch.see_lease(lease_ms)
  if lease_ms > S[LEASE_MAX] then S[LEASE_MAX] = lease_ms end
  if NOW - S[LEASES_SINCE] < math.max(S[LEASE_MAX], S[LEASE_MAX_BEFORE]) then return end
  -- After a restart nothing was renewed for long, and all is in force still.
  epoch.know()
  if S[LEASES_SINCE] < NOW then S[LEASE_MAX], S[LEASE_MAX_BEFORE], S[LEASES_SINCE] = 0, S[LEASE_MAX], NOW end
end

function epoch.next_token()
  epoch.know()
  S[GRANTS] = S[GRANTS] + 1
  if S[GRANTS] >= COUNT_END then
    S[EPOCH], S[GRANTS] = S[EPOCH] + math.floor(S[GRANTS] / COUNT_END), S[GRANTS] % COUNT_END
  end
  return string.format('%d.%d', S[EPOCH], S[GRANTS])
end
end)
