--[[ leftovers: queue of follow-up work, first in first out. LEFT stores what exceeded the budget: a line to advance (g), a sweep that
  cancels (c, of a flow f), discards (d), offers again (u), goes through those that depend on one (r resolves edges, k commits, x drops a
  submission in parts), releases edges (p), or revives (v). work.units is the rest of the budget. The state counts at
  LEFT_STORED the entries of LEFT. ]]
local BUDGET = args.setting(8)
local work = {units = BUDGET, cut = false, left_taken = 0, left_added = {}, left_added_at = 1, shared_put = {}, shared_gone = {}}
local left_stored, left_at, left_read = {}, 1, false

function work.push(item) work.left_added[#work.left_added + 1] = item end

function work.pop_leftover()
  if left_at > #left_stored and not left_read and S[LEFT_STORED] > work.left_taken then
    left_stored = redis.call('LRANGE', store.left, work.left_taken, work.left_taken + 31)
    left_at, left_read = 1, #left_stored < 32
  end
  if left_at <= #left_stored then
    left_at, work.left_taken = left_at + 1, work.left_taken + 1
    return cmsgpack.unpack(left_stored[left_at - 1])
  end
  local item = work.left_added[work.left_added_at]
  if item then work.left_added_at = work.left_added_at + 1 end
  return item
end

function work.any_left()
  return work.left_added_at <= #work.left_added or left_at <= #left_stored
    or (not left_read and S[LEFT_STORED] > work.left_taken)
end

-- A sweep that cancels: its paths' gate keys, the number it covers up to, why, and the dead job it is behind, if any;
-- then where it is, how many it has reached, whether it leaves that as its tally, and whether it is over.
function work.cancel_sweep(gate_keys, before, cause, behind)
  return {'c', gate_keys, before, cause, behind and behind.id, behind and behind[SEQ] or 0, S[PLACES], 1, 1, false, 0, false, false}
end

-- Have a sweep store how many it reached when it is over; return the number under which that will be.
function work.leave_tally(item)
  item[12] = true
  return item[3]
end
