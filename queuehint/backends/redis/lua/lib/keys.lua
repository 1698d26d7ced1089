--[[ keys: every Redis key of a namespace; keys.py says of each what is in it and who deletes it.
  KEYS[1] is the namespace's root with its hash tag, "{qh:default}"; all other keys are on the same slot. ]]
local ROOT = KEYS[1] .. ':'
local META, AUDIT = ROOT .. 'meta', ROOT .. 'audit'
local JOBS, SPECS, RESULTS = ROOT .. 'jobs', ROOT .. 'specs', ROOT .. 'results'
local PROGRESS, ASKED = ROOT .. 'progress', ROOT .. 'asked'
local GATES, PATHS, HOLDS, CLOSED = ROOT .. 'gates', ROOT .. 'paths', ROOT .. 'holds', ROOT .. 'closed'
local TIMERS, LEASES, PRUNES, LEFT = ROOT .. 'timers', ROOT .. 'leases', ROOT .. 'prunes', ROOT .. 'left'
local READY, POOLS, USERS, TURNS = ROOT .. 'ready', ROOT .. 'pools', ROOT .. 'users', ROOT .. 'turns'
local PARKED, PAUSES = ROOT .. 'parked', ROOT .. 'pauses'
local DEAD, KEYED = ROOT .. 'dead', ROOT .. 'keyed'
local SEEN, SESSIONS, RECEIPTS, UNTOLD = ROOT .. 'seen', ROOT .. 'sessions', ROOT .. 'receipts', ROOT .. 'untold'

local function line_key(gate_key) return ROOT .. 'line:' .. gate_key end
local function log_key(id) return ROOT .. 'log:' .. id end
local function errors_key(id) return ROOT .. 'errors:' .. id end
local function waiting_key(id) return ROOT .. 'waiting:' .. id end
local function blocked_key(id) return ROOT .. 'blocked:' .. id end
local function pool_wake_key(pool) return ROOT .. 'wake:pool:' .. pool end
local TIMER_WAKE = ROOT .. 'wake:timer'
local function session_wake_key(session) return ROOT .. 'wake:session:' .. session end
