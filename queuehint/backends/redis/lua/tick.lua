#!lua flags=allow-oom
--[[ tick: do what is left over and what is due.
  KEYS[1] root      str  namespace root with its hash tag, "{qh:default}"; lib/request/keys builds every other key from it
  KEYS[2] meta      str  the only key that always exists: see conversation.py
  ARGV[1] now_ms    int  the time, for tests only; "" asks the server
  ARGV[2] lane      str  the session the request belongs to, "" for none; ARGV[3] request int, its number there
  ARGV[4..7]        int  how long records are kept: finished, failed, canceled, with a service (lib/jobs/transitions); ms
  ARGV[8] budget    int  units of following work

  Returns more, now, next, and how many records were dropped before their time.   Mirrors core.engine   Cost: the budget ]]
-- @include lib/rules
args.count(8)
work.follow()
memory.relieve()
local reply = request.reply('tick', {memory.dropped})
request.forget()
return reply
