#!lua flags=no-writes,allow-oom
--[[ kinds: for the doctor, what some keys of the namespace are.
  ARGV[9] check     int  1 to see whether they have a reason to be there; ARGV[10..] names
  Returns three for each: type, ms to live (-1 for ever, -2 if it is gone), 1 if it has no reason to be there. ]]
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
