-- Says that a consumer lives, lets it lead if nobody does, and tells the time. May be sent again.
-- KEYS: 1 beats, 2 the consumer's hash, 3 leader, 4 a key that never exists
-- ARGV: 1 consumer, 2 seconds the hash outlives its consumer, 3 ms after its last beat that a
--       consumer counts as living, 4 ms that a leader leads after its last beat, then the hash's
--       fields and values
-- Returns TIME (seconds, microseconds), 1 if this consumer leads, ms until the leader's time is over
-- (0: there is none), how many consumers live
local beats, hash, leader, none = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local consumer, outlives, living, leads = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
-- A write that frees memory makes those after it legal when the server is full.
redis.call('DEL', none)
redis.call('ZADD', beats, now, consumer)
redis.call('HSET', hash, unpack(ARGV, 5))
redis.call('EXPIRE', hash, outlives)
local who = redis.call('GET', leader)
if not who or who == consumer then
  redis.call('SET', leader, consumer, 'PX', leads)
  who = consumer
end
local left = math.max(redis.call('PTTL', leader), 0)
return { time[1], time[2], who == consumer and 1 or 0, left,
  redis.call('ZCOUNT', beats, now - living, '+inf') }
