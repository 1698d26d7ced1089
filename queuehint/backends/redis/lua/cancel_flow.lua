#!lua flags=allow-oom
--[[ cancel_flow: cancel what is unfinished of a flow, in bounded steps.
  KEYS[1] root      str  namespace root with its hash tag, "{qh:default}"; lib/request/keys builds every other key from it
  KEYS[2] meta      str  the only key that always exists: see conversation.py
  ARGV[1] now_ms    int  the time, for tests only; "" asks the server
  ARGV[2] lane      str  the session the request belongs to, "" for none; ARGV[3] request int, its number there
  ARGV[4..7]        int  how long records are kept: finished, failed, canceled, with a service (lib/jobs/transitions); ms
  ARGV[8] budget    int  units of following work
  ARGV[9] flow      str  ARGV[10] reason str
  Returns more, now, next.   Mirrors core.engine   Cost: the budget ]]
-- @include lib/rules
args.count(10)
-- It takes a number itself: what comes after it, by enqueue or redrive, is not covered.
S[NUMBERS] = S[NUMBERS] + 1
work.push({'f', ARGV[9], S[NUMBERS], S[NUMBERS], ARGV[10]})
work.follow()
return request.reply('cancel_flow', {})
