--[[ session: every mutating script is idempotent in its request.
  ARGV[2] lane     str  a session that has one request in flight at a time, "" for none
  ARGV[3] request  int  counts the requests of the lane
  A lane's receipt is its last request with the reply. A repeat gets that reply and changes nothing; a request that comes
  late, after a newer one, is refused. ]]
local LANE, REQUEST = ARGV[2], tonumber(ARGV[3])
local receipt = false

-- A reply, and behind it the specs of the jobs granted, which a receipt does not keep.
local function with_specs(reply, granted)
  if granted then
    for _, id in ipairs(granted) do reply[#reply + 1] = redis.call('HGET', SPECS, id) or '' end
  end
  return reply
end

if LANE ~= '' then
  local stored = redis.call('HGET', RECEIPTS, LANE)
  if stored then
    receipt = cmsgpack.unpack(stored)
    if receipt[1] > REQUEST then return redis.error_reply('STALE_REQUEST ' .. LANE) end
    if receipt[1] == REQUEST then return with_specs(receipt[3], receipt[4]) end
  end
end
