#!lua flags=no-writes,allow-oom
--[[ list_weights: the users with a weight other than 1.
  Returns each, "" for jobs without a user, and its weight.
  Mirrors core.asking.questions ]]
-- @include lib/questions
args.count(8)
return redis.call('HGETALL', store.weights)
