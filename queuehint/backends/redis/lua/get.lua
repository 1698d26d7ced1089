#!lua flags=no-writes,allow-oom
--[[ get: read records by id.
  KEYS[1] root      str  namespace root with its hash tag, "{qh:default}"; lib/request/keys builds every other key from it
  KEYS[2] meta      str  the only key that always exists: see conversation.py
  ARGV[1] now_ms    int  the time, for tests only; "" asks the server
  ARGV[2..8]             not used: as for changes
  ARGV[9..]         ids
  Returns for each of the first ids, as many as fit into 4 MiB, its record (lib/asking/records), an empty list where there is none. ]]
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
