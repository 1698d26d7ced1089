#!lua flags=allow-oom
--[[ cancel: cancel jobs by id; those that run are told.
  KEYS[1] root      str  namespace root with its hash tag, "{qh:default}"; lib/request/keys builds every other key from it
  KEYS[2] meta      str  the only key that always exists: see conversation.py
  ARGV[1] now_ms    int  the time, for tests only; "" asks the server
  ARGV[2] lane      str  the session the request belongs to, "" for none; ARGV[3] request int, its number there
  ARGV[4..7]        int  how long records are kept: finished, failed, canceled, with a service (lib/jobs/transitions); ms
  ARGV[8] budget    int  units of following work
  ARGV[9] reason    str
  ARGV[10..]        ids
  Returns more, now, next, and for each id its verdict (D done, Q requested, R refused, U unknown) and state ("-" none).
  Mirrors core.engine   Cost O(depth) a job, and what follows ]]
-- @include lib/rules
args.count(9, 1)
local verdicts = {}
for at = 10, #ARGV do
  local job = jobs.find(ARGV[at])
  if not job then
    verdicts[#verdicts + 1] = 'U-'
  elseif OVER[job[STATE]] then
    verdicts[#verdicts + 1] = 'R' .. job[STATE]
  else
    sweeps.cancel_job(job, ARGV[9])
    verdicts[#verdicts + 1] = (job[STATE] == STARTED and 'Q' or 'D') .. job[STATE]
  end
end
work.follow()
return request.reply('cancel', {table.concat(verdicts)})
