#!lua flags=no-writes,allow-oom
--[[ types: the types of some keys of the namespace, for the examination at a process's first use.
  ARGV[9..] names   str  of keys
  Returns the type of each, "none" if it is not there.   Cost O(names) ]]
-- @include lib/request/keys
-- @include lib/request/arguments
args.count(8, 1)
local reply = {}
for at = 9, #ARGV do reply[at - 8] = redis.call('TYPE', store[ARGV[at]]).ok end
return reply
