#!lua flags=allow-oom
--[[ discard: take dead jobs off the shelf.
  KEYS[1] root      str  namespace root with its hash tag, "{qh:default}"; lib/request/keys builds every other key from it
  KEYS[2] meta      str  the only key that always exists: see conversation.py
  ARGV[1] now_ms    int  the time, for tests only; "" asks the server
  ARGV[2] lane      str  the session the request belongs to, "" for none; ARGV[3] request int, its number there
  ARGV[4..7]        int  how long records are kept: finished, failed, canceled, with a service (lib/jobs/transitions); ms
  ARGV[8] budget    int  units of following work
  ARGV[9..]         ids
  Returns more, now, next, and for each id its verdict (D done, R refused, U unknown) and state ("-" none).
  Mirrors core.engine   Cost O(depth) a job, and what follows ]]
-- @include lib/rules
-- @include lib/jobs/dead
args.count(8, 1)
local dead, verdicts = sort_out(CANCELED, 9)
for _, job in ipairs(dead) do lifecycle.discard(job) end
work.follow()
return request.reply('discard', {verdicts})
