-- Takes a consumer that stops out of the books. May be sent again.
-- KEYS: 1 stream, 2 beats, 3 the consumer's hash, 4 leader
-- ARGV: 1 group, 2 consumer
-- Returns how many entries are still pending for it; it is deleted only if there are none, since
-- XGROUP DELCONSUMER throws pending entries away
local stream, beats, hash, leader = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local group, consumer = ARGV[1], ARGV[2]
redis.call('ZREM', beats, consumer)
redis.call('DEL', hash)
if redis.call('GET', leader) == consumer then
  redis.call('DEL', leader)
end
local pending = redis.pcall('XPENDING', stream, group, '-', '+', 1, consumer)
if pending.err then
  return 0
end
if #pending == 0 then
  redis.call('XGROUP', 'DELCONSUMER', stream, group, consumer)
end
return #pending
