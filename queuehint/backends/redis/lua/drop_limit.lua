#!lua flags=allow-oom
--[[ drop_limit: remove the limits of a path: its own, and the one that holds for each of its children.
  ARGV[9] path      str  "/" and the gate key, "-" for the namespace
  Returns more, now, next, 1 if this changed anything.
  Mirrors core.operating   Cost O(places that have jobs) ]]
-- @include lib/rules
args.count(9)
local key, changed = args.path(9, '-'), false
for _, field in ipairs(key and {'=' .. key, '/' .. key} or {'-'}) do
  changed = limits.set(field, false, false, false, false) or changed
end
work.follow()
return request.reply({changed and 1 or 0})
