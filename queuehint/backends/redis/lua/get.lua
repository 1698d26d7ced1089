#!lua flags=no-writes,allow-oom
--[[ get: read records by id.
  ARGV[9..]         ids
  Returns for each of the first ids, as many as fit into 4 MiB, its record (lib/asking/records); an empty list for an unknown id.
  Mirrors core.asking.questions ]]
-- @include lib/questions
-- @include lib/asking/records
args.count(8, 1)
local reply = {}
for at = 9, #ARGV do
  local job = jobs.find(ARGV[at])
  local record = job and record_of(ARGV[at], job) or {}
  if job and #ARGV > 9 and not fits(record) and #reply > 0 then break end
  reply[#reply + 1] = record
end
return reply
