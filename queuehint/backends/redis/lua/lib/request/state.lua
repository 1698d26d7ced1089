--[[ state: the counters and settings of a namespace, one array, read once and written once per script.
  Ints stay below 2^53. Counters of jobs (HOLDING to N_CANCELED) are computed from the heads that change, see lib/request/write. ]]
-- @include lib/formats/state_format
local SCHEMA, CLOCK, NUMBERS, PLACES, TURN, ROTATION, PAUSE, DRAWN = 1, 2, 3, 4, 5, 6, 7, 8 -- @const
local EPOCH, GRANTS, RUN, REAP_FROM, LEASE_MAX, PAUSED, CLOSED_PATHS = 9, 10, 11, 12, 13, 14, 15 -- @const
local ENQUEUED_IN_ALL, STARTED_IN_ALL, SETTLED_IN_ALL, LOST_IN_ALL, PRUNED_IN_ALL = 16, 17, 18, 19, 20 -- @const
local HOLDING, UNKNOWN_TASKS_NOW, BACKING_OFF_NOW = 21, 22, 23 -- @const
local COUNT_OF = {S = 24, D = 25, Q = 26, R = 27, F = 28, X = 29, C = 30}

local TOLD_NEXT, MARKS, MEMORY_SEEN, OPEN_EDGES, SHARED_VALUES = 31, 32, 33, 34, 35 -- @const
local LIMITS, WATCHED, LIMITED, HIDDEN = 44, 45, 46, 47 -- @const
local SCHEDULES, SCHEDULE_VERSIONS, NEXT_SCHEDULE = 48, 49, 50 -- @const
-- Events of each counted kind; JOURNAL counts all events, FOLLOWED is when they are dropped unless a subscriber reads.
local TOTAL_OF = {finished = 51, failed = 52, canceled = 53, retried = 54, snoozed = 55, released = 56}
local RESOLVED, RESOLVED_SUM, JOURNAL, FOLLOWED, RESOLVED_MAX = 57, 58, 59, 60, 61 -- @const
-- Behind LEVELS stand five numbers: the jobs with a place at each of the levels 1 to 5.
local LEVELS = 38 -- @const
-- WEIGHTED counts the users with a weight; USERS_SEEN is when a worker last asked for jobs of some users only, 0 if none did lately.
local WEIGHTED, USERS_SEEN = 62, 63 -- @const
-- LEASE_MAX is the longest lease given since LEASES_SINCE, LEASE_MAX_BEFORE the longest of the time before, see lib/request/epoch.
local LEASE_MAX_BEFORE, LEASES_SINCE = 64, 65 -- @const
-- DROPPED_IN_ALL of those pruned went before their time, see lib/request/memory; RELIEF_AT is where it looks next.
local DROPPED_IN_ALL, RELIEF_AT = 66, 67 -- @const
-- COMMITTING counts the submissions in parts that were committed and have jobs yet to be let go.
local COMMITTING = 68 -- @const
-- When the first of TIMERS, LEASES and PRUNES comes up, -1 for never, and how many leftovers there are: so that a step with
-- nothing to do asks none of them; NEXT_SHARED is that of SHARED_ENDS. FORGOTTEN_AT is when sessions and pools were last looked
-- through for those to forget.
local NEXT_TIMER, NEXT_LEASE, NEXT_PRUNE, LEFT_STORED, FORGOTTEN_AT = 69, 70, 71, 72, 73 -- @const
local NEXT_SHARED = 74 -- @const
-- CHANGES counts the steps that changed a job or data derived from jobs: where it stands still, sums over all jobs do.
-- EVENTS_BYTES is how much the events that are kept count together.
local CHANGES, EVENTS_BYTES = 75, 76 -- @const
-- REFUSED_POOLS counts the pools with ready jobs that releases have refused, see lib/structures/ready_queue.
local REFUSED_POOLS = 77 -- @const
local STATE_SIZE, SCHEMA_VERSION = 77, 14 -- @const
local request = {}

local function corrupt(text) error('CORRUPT ' .. text, 0) end

-- The id of the server's run: a server that starts anew has another one, and no memory of this one.
local own_run = false -- @once

local function server_run()
  own_run = own_run or string.match(redis.call('INFO', 'server'), 'run_id:(%w+)')
  return own_run
end

local stored = redis.call('HMGET', store.meta, 'state', 'test', 'retention')
request.retention = stored[3]
local S
if stored[1] then
  S = unpack_state(stored[1])
  if S[SCHEMA] ~= SCHEMA_VERSION then
    return redis.error_reply('BAD_SCHEMA ' .. tostring(S[SCHEMA]))
  end
else
  if redis.call('EXISTS', store.jobs) == 1 then
    return redis.error_reply('CORRUPT the state in ' .. store.meta .. ' is gone, its jobs are not')
  end
  S = {}
  for at = 1, STATE_SIZE do S[at] = 0 end
  S[SCHEMA], S[EPOCH], S[RUN], S[TOLD_NEXT], S[NEXT_SCHEDULE] = SCHEMA_VERSION, -1, '', -1, -1
  S[NEXT_TIMER], S[NEXT_LEASE], S[NEXT_PRUNE], S[NEXT_SHARED] = -1, -1, -1, -1
end
if ARGV[1] ~= '' then
  if stored[2] ~= '1' then
    return redis.error_reply('CORRUPT a time was given, and this namespace is not for tests')
  end
  S[CLOCK] = math.max(S[CLOCK], args.int(1, -INT_MAX))
else
  local time = redis.call('TIME')
  S[CLOCK] = math.max(S[CLOCK], time[1] * 1000 + math.floor(time[2] / 1000))
end
local NOW = S[CLOCK]
