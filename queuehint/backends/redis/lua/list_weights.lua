#!lua flags=no-writes,allow-oom
--[[ list_weights: the users with a weight other than 1.
  KEYS[1] root      str  namespace root with its hash tag, "{qh:default}"; lib/request/keys builds every other key from it
  KEYS[2] meta      str  the only key that always exists: see conversation.py
  ARGV[1] now_ms    int  the time, for tests only; "" asks the server
  ARGV[2..8]             not used: as for changes

  Returns each, "" for jobs without a user, and its weight.   Mirrors core.questions ]]
-- @include lib/questions
args.count(8)
return redis.call('HGETALL', store.weights)
