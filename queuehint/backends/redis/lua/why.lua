#!lua flags=no-writes,allow-oom
--[[ why: reasons from a waiting job to the root cause of its wait; or what waits at a path, and what stands in its way.
  ARGV[9] id        str  "" for a question about a path; ARGV[10] limit int
  ARGV[11] path     str  "/" and a gate key, "-" for a question about a job
  Returns up to so many reasons (lib/asking/reasons), nothing if there is no such job; or what lib/asking/at_path returns.
  Mirrors core.asking.chain ]]
-- @include lib/questions
-- @include lib/asking/reasons
-- @include lib/asking/at_path
local CHAIN_LOOKED_AT_MAX = 100 -- @const
local GOES_ON = {place = true, dependency = true}
args.count(11)
local limit = args.int(10)
local seen, seen_count, way, first = {}, 0, {}, nil

-- Visit a job and the jobs that it waits for, depth first; return whether the chain ends at a wait that is stuck.
local function finds_stuck(job)
  seen[job.id], seen_count = true, seen_count + 1
  local reason = reason_of(job)
  way[#way + 1] = {job, reason}
  if reason.stuck then return true end
  local is_end = true
  if GOES_ON[reason.kind] and #way < limit then
    for _, named in ipairs(reason.jobs) do
      local other = not seen[named.id] and seen_count < CHAIN_LOOKED_AT_MAX and jobs.find(named.id)
      if other then
        is_end = false
        if finds_stuck(other) then return true end
      end
    end
  end
  if is_end and not first then first = {unpack(way)} end
  way[#way] = nil
  return false
end

local path = args.path(11, '-')
if path then return at_path.reasons(path, limit) end
local job = jobs.find(ARGV[9])
if not job then return {} end
local chain, reply = finds_stuck(job) and way or first, {}
for at, hop in ipairs(chain) do
  if at == #chain then cycle_reason(hop[1], hop[2]) end
  reply[at] = reply_of(hop[1], hop[2])
end
return reply
