--[[ dead: sort out which of the jobs named from an argument on are on the dead shelf; from here on nothing prunes those. ]]
local function sort_out(target, first)
  local dead, named, verdicts = {}, {}, {}
  for at = first, #ARGV do
    local job = jobs.find(ARGV[at])
    if not job then
      verdicts[#verdicts + 1] = 'U-'
    elseif job[STATE] ~= FAILED or (target == QUEUED and job[PRESENCE]) then
      verdicts[#verdicts + 1] = 'R' .. job[STATE]
    else
      if not named[job.id] then dead[#dead + 1] = job end
      named[job.id] = true
      timers.drop(job)
      verdicts[#verdicts + 1] = 'D' .. target
    end
  end
  return dead, table.concat(verdicts)
end
