--[[ session: every mutating script is idempotent in its request.
  ARGV[2] lane     str  a session that has one request in flight at a time, "" for none
  ARGV[3] request  int  counts the requests of the lane
  A lane's receipt is its last request with the reply. A repeat gets that reply and changes nothing; a request that comes
  late, after a newer one, is refused. ]]
local LANE, REQUEST = ARGV[2], tonumber(ARGV[3])

-- A reply, and behind it the specs of the jobs granted, which a receipt does not keep.
local function with_specs(reply, granted)
  if granted then
    for _, id in ipairs(granted) do reply[#reply + 1] = redis.call('HGET', SPECS, id) or '' end
  end
  return reply
end

local receipt_seen_ms = false

if LANE ~= '' then
  local receipt = redis.call('HGET', RECEIPTS, LANE)
  if receipt then
    local request, seen_ms, from = string.match(receipt, '^(%d+) (%d+) ()')
    request, receipt_seen_ms = tonumber(request), tonumber(seen_ms)
    if request > REQUEST then return redis.error_reply('STALE_REQUEST ' .. LANE) end
    if request == REQUEST then
      local kept = cmsgpack.unpack(string.sub(receipt, from))
      return with_specs(kept[1], kept[2])
    end
  end
end
