#!lua flags=no-writes,allow-oom
--[[ peek: the number that would be drawn next.
  KEYS[1] root      str  namespace root with its hash tag, "{qh:default}"; lib/request/keys builds every other key from it
  KEYS[2] meta      str  the only key that always exists: see conversation.py
  ARGV[1] now_ms    int  the time, for tests only; "" asks the server
  ARGV[2..8]             not used: as for changes
  Returns the number.   Mirrors core.engine ]]
-- @include lib/questions
args.count(8)
return {S[DRAWN] + 1}
