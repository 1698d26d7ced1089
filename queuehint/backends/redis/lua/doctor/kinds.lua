#!lua flags=no-writes,allow-oom
--[[ kinds: for the doctor, the types of some keys of the namespace.
  ARGV[9] check     int  1 to check whether the keys are in use; ARGV[10..] names
  Returns three for each: type, ms to live (-1 for ever, -2 if it is gone), 1 if nothing uses it. ]]
-- @include doctor/lib/rules
-- @include doctor/lib/examine_keys
args.count(9, 1)
local is_checked, reply = args.flag(9), {}
for at = 10, #ARGV do
  local name = ARGV[at]
  local kind = redis.call('TYPE', store[name]).ok
  reply[#reply + 1] = kind
  reply[#reply + 1] = redis.call('PTTL', store[name])
  reply[#reply + 1] = is_checked and kind ~= 'none' and examine.is_stray_key(name) and 1 or 0
end
return reply
