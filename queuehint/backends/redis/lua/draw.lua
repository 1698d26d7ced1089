#!lua flags=allow-oom
--[[ draw: draw numbers for ids; none is drawn twice.
  KEYS[1] root      str  namespace root with its hash tag, "{qh:default}"; lib/request/keys builds every other key from it
  KEYS[2] meta      str  the only key that always exists: see conversation.py
  ARGV[1] now_ms    int  the time, for tests only; "" asks the server
  ARGV[2] lane      str  the session the request belongs to, "" for none; ARGV[3] request int, its number there
  ARGV[4..7]        int  how long records are kept: finished, failed, canceled, with a service (lib/jobs/transitions); ms
  ARGV[8] budget    int  units of following work
  ARGV[9] count     int
  Returns more, now, next, the first.   Mirrors core.engine ]]
-- @include lib/rules
args.count(9)
local first = S[DRAWN] + 1
S[DRAWN] = S[DRAWN] + args.int(9)
return request.reply('draw', {first})
