#!lua flags=allow-oom
--[[ draw: draw numbers for ids; none is drawn twice.
  ARGV[9] count     int
  Returns more, now, next, the first.
  Mirrors core.producing ]]
-- @include lib/rules
args.count(9)
local first = S[DRAWN] + 1
S[DRAWN] = S[DRAWN] + args.int(9)
return request.reply({first})
