#!lua flags=allow-oom
--[[ drop_limit: take away the limits of a path, that for each child of it too.
  KEYS[1] root      str  namespace root with its hash tag, "{qh:default}"; lib/request/keys builds every other key from it
  KEYS[2] meta      str  the only key that always exists: see conversation.py
  ARGV[1] now_ms    int  the time, for tests only; "" asks the server
  ARGV[2] lane      str  the session the request belongs to, "" for none; ARGV[3] request int, its number there
  ARGV[4..7]        int  how long records are kept: finished, failed, canceled, with a service; ms
  ARGV[8] budget    int  units of following work
  ARGV[9] path      str  "/" and the gate key, "-" for the namespace
  Returns more, now, next, 1 if this changed anything.   Mirrors core.structures.limits   Cost O(places that have jobs) ]]
-- @include lib/rules
args.count(9)
local key, changed = args.path(9, '-'), false
for _, field in ipairs(key and {'=' .. key, '/' .. key} or {'-'}) do
  changed = limits.set(field, false, false, false, false) or changed
end
work.follow()
return request.reply('drop_limit', {changed and 1 or 0})
