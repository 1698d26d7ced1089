--[[ session: every mutating script is idempotent in its request.
  ARGV[2] stream   str  the name of a stream of requests, with one in flight at a time; "" for none
  ARGV[3] request  int  the number of the request in its stream
  The receipt of a stream is the number of its last request and when SESSIONS was last updated for it, eight bytes each, and the
  reply. A repeat gets that reply and changes nothing; a request that comes late, after a newer one, is refused. ]]
local SESSION_SEEN_MS = 60000 -- @const
request.stream, request.number = ARGV[2], args.int(3)
local services_known = {} -- @once
-- How long records are kept is read where one ends, after others have been written.
args.setting(4)
args.setting(5)
args.setting(6)
if not services_known[ARGV[7] or ''] then
  args.check_kept(ARGV[7], 7)
  services_known = {[ARGV[7]] = true}
end

-- A reply, and behind it the specs of the jobs granted, which a receipt does not keep.
function request.with_specs(reply, specs)
  for at = 1, specs and #specs or 0 do reply[#reply + 1] = specs[at] end
  return reply
end

-- Store the receipt from which a repeated request is answered, and return the reply as it is sent.
function request.told(reply, granted, specs)
  if request.stream ~= '' then
    local seen_ms = request.seen_ms
    if not seen_ms or NOW - seen_ms >= SESSION_SEEN_MS then
      seen_ms = NOW
      redis.call('ZADD', store.sessions, NOW, request.stream)
    end
    redis.call('HSET', store.receipts, request.stream, struct.pack('<dd', request.number, seen_ms) .. cmsgpack.pack({reply, granted}))
  end
  return request.with_specs(reply, specs)
end

request.seen_ms = false

if request.stream ~= '' then
  local receipt = redis.call('HGET', store.receipts, request.stream)
  if receipt then
    local number, seen_ms, from = struct.unpack('<dd', receipt)
    request.seen_ms = seen_ms
    if number > request.number then return redis.error_reply('STALE_REQUEST ' .. request.stream) end
    if number == request.number then
      local kept = cmsgpack.unpack(string.sub(receipt, from))
      local reply, granted = kept[1], kept[2] or {}
      -- A grant whose record is gone meanwhile is left out. The heads stand at the end of the stored reply.
      local before_heads, found = #reply - #granted, {}
      for at = #granted, 1, -1 do
        local head = redis.call('HGET', store.jobs, granted[at])
        local job = head and heads.read(granted[at], head)
        if job and not job[GONE] then
          table.insert(found, 1, heads.spec(job))
        else
          table.remove(reply, before_heads + at)
        end
      end
      return request.with_specs(reply, found)
    end
  end
end
