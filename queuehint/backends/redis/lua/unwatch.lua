#!lua flags=allow-oom
--[[ unwatch: remove the subscriptions of a session to jobs, at its end.
  ARGV[9] session   str  the subscriber; ARGV[10..] ids
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
return request.reply({})
