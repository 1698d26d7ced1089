#!lua flags=no-writes,allow-oom
--[[ fetch: results of a running job's dependencies, and of its own steps.
  ARGV[9] id, ARGV[10] token; ARGV[11] read the steps behind the first so many, "" for none; ARGV[12..] ids
  Returns the verdict (D done, L lost), a list of steps, and two for each of the first ids, as many as fit into 4 MiB: its state and
  the kind of its result ("-" none, n null, s a stored one; "" for an id that is no dependency), and the result.
  Steps are two for each of the first ones, as many as fit into 4 MiB too: when it was stored, a space and its name; and the result.
  Mirrors core.asking.questions ]]
-- @include lib/questions
-- @include lib/structures/edges
args.count(11, 1)
local FETCH_BYTES_MAX = 4194304 -- @const
local job = jobs.of(ARGV[9])
if not job or job[STATE] ~= STARTED or job[TOKEN] ~= ARGV[10] then return {'L'} end
local declared = {}
if job[PORTIONS] and job[NEEDS] == HELD then
  for at = 12, #ARGV do declared[ARGV[at]] = redis.call('ZSCORE', store.waiting(ARGV[at]), job.id) and true end
elseif job[NEEDS] == HELD or job[NEEDS] == KNOWN then
  for _, need in ipairs(edges.all_needs(job)) do declared[need[1]] = true end
end

-- The steps of the job behind the first so many.
local function steps_behind(first)
  local told, size = {}, 0
  for number = first + 1, job[STEPS] do
    local named = redis.call('HGET', store.steps(job.id), 'n' .. number)
    local result = named and redis.call('HGET', store.steps(job.id), '=' .. string.match(named, ' (.*)$'))
    if not result then corrupt('step ' .. number .. ' of job ' .. job.id .. ' is missing in ' .. store.steps(job.id)) end
    size = size + #result
    if #told > 0 and size > FETCH_BYTES_MAX then break end
    told[#told + 1], told[#told + 2] = named, result
  end
  return told
end

local reply, size = {'D', ARGV[11] ~= '' and steps_behind(args.int(11)) or {}}, 0
for at = 12, #ARGV do
  local found = declared[ARGV[at]] and jobs.of(ARGV[at])
  local result = ''
  if found and found[RESULT] == 's' then result = redis.call('HGET', store.results, ARGV[at]) or '' end
  size = size + (found and (found[RESULT] == 'n' and 4 or #result) or 0)
  if #reply > 2 and size > FETCH_BYTES_MAX and found then break end
  reply[#reply + 1] = found and not found[GONE] and found[STATE] .. (found[RESULT] or '-') or ''
  reply[#reply + 1] = found and not found[GONE] and result or ''
end
return reply
