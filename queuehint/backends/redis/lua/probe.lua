#!lua flags=allow-oom
--[[ probe: run every command that scripts write with, on a key of its own, so that a user who lacks one is refused at once
  and not in the middle of a change.
  Returns 1.   Cost O(1) ]]
local key = KEYS[1] .. ':probe'
-- Commands that read or delete find nothing; what others write is deleted by commands that were allowed before.
redis.call('TIME')
redis.call('INFO', 'server')
for _, command in ipairs({'UNLINK', 'HKEYS', 'HVALS', 'HGETALL', 'HLEN', 'ZCARD', 'LLEN', 'EXISTS', 'TYPE'}) do
  redis.call(command, key)
end
for _, command in ipairs({'HGET', 'HMGET', 'HEXISTS', 'HDEL', 'ZSCORE', 'ZREM'}) do
  redis.call(command, key, '')
end
for _, command in ipairs({'ZRANGE', 'ZRANGEBYSCORE', 'ZREMRANGEBYSCORE', 'LRANGE', 'LTRIM'}) do
  redis.call(command, key, 0, 0)
end
for _, command in ipairs({'ZRANGEBYLEX', 'ZREVRANGEBYLEX', 'ZLEXCOUNT'}) do
  redis.call(command, key, '-', '+')
end
redis.call('HSET', key, '', '')
redis.call('UNLINK', key)
redis.call('ZADD', key, 0, '')
redis.call('UNLINK', key)
redis.call('RPUSH', key, '')
redis.call('UNLINK', key)
return {1}
