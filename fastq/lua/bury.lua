-- Ends a job badly: its outcome is stored and the job moves to dead. May be sent again.
-- KEYS: 1 stream, 2 result, 3 dead
-- ARGV: 1 group, 2 consumer, 3 entry id, 4 ms to keep the result (0 none, -1 for ever), 5 envelope,
--       then the fields and values of the dead entry
-- Returns 1 if it was done, 0 if the entry is not pending for this consumer
local stream, result, dead = KEYS[1], KEYS[2], KEYS[3]
local group, consumer, id, keep, envelope = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), ARGV[5]
if #redis.call('XPENDING', stream, group, id, id, 1, consumer) == 0 then
  return 0
end
redis.call('XACK', stream, group, '0-0')
redis.call('XADD', dead, '*', unpack(ARGV, 6))
if keep > 0 then
  redis.call('SET', result, envelope, 'PX', keep)
elseif keep < 0 then
  redis.call('SET', result, envelope)
end
redis.call('XACK', stream, group, id)
redis.call('XDEL', stream, id)
return 1
