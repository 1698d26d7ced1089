#!lua flags=no-writes,allow-oom
--[[ fetch: results of a running job's dependencies.
  ARGV[9] id, ARGV[10] token; ARGV[11..] ids
  Returns the verdict (D done, L lost), and two for each of the first ids, as many as fit into 4 MiB: its state and the kind
  of its result ("-" none, n null, s a stored one; "" for an id that is no dependency), and the result.
  Mirrors core.asking.questions ]]
-- @include lib/questions
-- @include lib/structures/edges
args.count(10, 1)
local FETCH_BYTES_MAX = 4194304 -- @const
local job = jobs.of(ARGV[9])
if not job or job[STATE] ~= STARTED or job[TOKEN] ~= ARGV[10] then return {'L'} end
local declared = {}
if job[PORTIONS] and job[NEEDS] == HELD then
  for at = 11, #ARGV do declared[ARGV[at]] = redis.call('ZSCORE', store.waiting(ARGV[at]), job.id) and true end
elseif job[NEEDS] == HELD or job[NEEDS] == KNOWN then
  for _, need in ipairs(edges.all_needs(job)) do declared[need[1]] = true end
end
local reply, size = {'D'}, 0
for at = 11, #ARGV do
  local found = declared[ARGV[at]] and jobs.of(ARGV[at])
  local result = ''
  if found and found[RESULT] == 's' then result = redis.call('HGET', store.results, ARGV[at]) or '' end
  size = size + (found and (found[RESULT] == 'n' and 4 or #result) or 0)
  if #reply > 1 and size > FETCH_BYTES_MAX and found then break end
  reply[#reply + 1] = found and not found[GONE] and found[STATE] .. (found[RESULT] or '-') or ''
  reply[#reply + 1] = found and not found[GONE] and result or ''
end
return reply
