#!lua flags=allow-oom
--[[ drop_limit: remove the limits of a path: its own, and the one that holds for each of its children; or of a task or pool.
  ARGV[9] path      str  "/" and the gate key, "-" for the namespace, or t and a task, p and a pool
  Returns more, now, next, 1 if this changed anything.
  Mirrors core.operating   Cost O(counters of the limit) ]]
-- @include lib/rules
args.count(9)
local fields, changed = {ARGV[9]}, false
if not string.find(ARGV[9], '^[tp].') then
  local key = args.path(9, '-')
  fields = key and {'=' .. key, '/' .. key} or {'-'}
end
for _, field in ipairs(fields) do
  changed = limits.set(field, false, false, false, false) or changed
end
work.follow()
return request.reply({changed and 1 or 0})
