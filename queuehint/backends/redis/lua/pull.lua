#!lua flags=no-writes,allow-oom
--[[ pull: the value stored under a key of a namespace.
  ARGV[9] place     str  namespace, NUL and key
  Returns a value; nothing if there is none or its time is over.
  Mirrors core.producing ]]
-- @include lib/questions
args.count(9)
local stored = redis.call('HGET', store.shared, ARGV[9])
if not stored then return {} end
local until_ms, from = string.match(stored, '^(%d+) ()')
return tonumber(until_ms) > NOW and {string.sub(stored, from)} or {}
