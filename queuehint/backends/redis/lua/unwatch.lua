#!lua flags=allow-oom
--[[ unwatch: forget that a session waits for jobs, at its end.
  KEYS[1] root      str  namespace root with its hash tag, "{qh:default}"; lib/request/keys builds every other key from it
  KEYS[2] meta      str  the only key that always exists: see conversation.py
  ARGV[1] now_ms    int  the time, for tests only; "" asks the server
  ARGV[2] lane      str  the session the request belongs to, "" for none; ARGV[3] request int, its number there
  ARGV[4..7]        int  how long records are kept: finished, failed, canceled, with a service (lib/jobs/transitions); ms
  ARGV[8] budget    int  units of following work
  ARGV[9] session   str  who waited; ARGV[10..] ids
  Returns more, now, next. ]]
-- @include lib/rules
args.count(9, 1)
for at = 10, #ARGV do
  local job = jobs.of(ARGV[at])
  if job and not OVER[job[STATE]] and job[WATCHERS] then
    local left = {}
    for _, session in ipairs(job[WATCHERS]) do
      if form.session(session) ~= ARGV[9] then left[#left + 1] = session end
    end
    if #left < #job[WATCHERS] then
      job[WATCHERS] = #left > 0 and left
      jobs.dirty[job.id] = job
    end
  end
end
return request.reply('unwatch', {})
