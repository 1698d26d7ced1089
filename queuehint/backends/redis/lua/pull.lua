#!lua flags=no-writes,allow-oom
--[[ pull: what is stored under a key of a namespace.
  KEYS[1] root      str  namespace root with its hash tag, "{qh:default}"; lib/request/keys builds every other key from it
  KEYS[2] meta      str  the only key that always exists: see conversation.py
  ARGV[1] now_ms    int  the time, for tests only; "" asks the server
  ARGV[2..8]             not used: as for changes
  ARGV[9] place     str  namespace, NUL and key
  Returns a value; nothing if there is none or its time is over.   Mirrors core.xcom ]]
-- @include lib/questions
args.count(9)
local stored = redis.call('HGET', store.shared, ARGV[9])
if not stored then return {} end
local until_ms, from = string.match(stored, '^(%d+) ()')
return tonumber(until_ms) > NOW and {string.sub(stored, from)} or {}
