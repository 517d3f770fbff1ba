-- Says that a consumer lives, and tells the time. May be sent again.
-- KEYS: 1 beats, 2 the consumer's hash, 3 a key that never exists
-- ARGV: 1 consumer, 2 seconds the hash outlives its consumer, then the hash's fields and values
-- Returns TIME: seconds, microseconds
local beats, hash, none = KEYS[1], KEYS[2], KEYS[3]
local consumer, outlives = ARGV[1], ARGV[2]
local time = redis.call('TIME')
-- A write that frees memory makes those after it legal when the server is full.
redis.call('DEL', none)
redis.call('ZADD', beats, time[1] * 1000 + math.floor(time[2] / 1000), consumer)
redis.call('HSET', hash, unpack(ARGV, 3))
redis.call('EXPIRE', hash, outlives)
return time
