#!lua flags=no-writes,allow-oom
--[[ peek: the number that would be drawn next.
  Returns the number.
  Mirrors core.producing ]]
-- @include lib/questions
args.count(8)
return {S[DRAWN] + 1}
