-- Lets a job run again: defers it, or puts it back into the stream. May be sent again.
-- KEYS: 1 stream, 2 deferred, 3 dead, 4 meta, 5 record, 6 result
-- ARGV: 1 group, 2 consumer, 3 control channel, 4 how many dead jobs are kept and 5 how many ms
--       (0 for ever), 6 entry, 7 id, 8 ms to defer by, 9 when it was enqueued first, 10 '1' if its
--       fields are not all known by name, then the fields and values of its next entry
-- Returns 1 if it was done, 0 if the entry is not pending for this consumer
local stream, deferred, dead, meta = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local record, result = KEYS[5], KEYS[6]
local group, consumer, control, most, age = ARGV[1], ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5])
local entry, id, delay, since = ARGV[6], ARGV[7], tonumber(ARGV[8]), ARGV[9]
if #redis.call('XPENDING', stream, group, entry, entry, 1, consumer) == 0 then
  return 0
end
local now = now_ms()
local own = id ~= entry and redis.call('HMGET', record, ':entry')
redis.call('ZSCORE', deferred, id) -- a key of another type shows before anything is written
redis.call('XACK', stream, group, '0-0')
if own and own[1] ~= entry then
  supersede(stream, group, dead, meta, most, age, now, entry, id)
  return 1
end
if not own then
  -- A zombie's SET NX must fail from now on; the last run's outcome overwrites this.
  redis.call('SET', result, '~')
  redis.call('HSET', record, ':nonce', '', ':since', since)
end
-- In this order a refusal (ACL) at any step leaves a record that names an entry which is there.
if delay > 0 then
  redis.call('HSET', record, unpack(ARGV, 11))
  if ARGV[10] == '1' then
    redis.call('HSET', record, ':more', 1)
  end
  redis.call('ZADD', deferred, now + delay, id)
  redis.call('HDEL', record, ':entry', ':next')
  wake(deferred, control, id, now + delay, now)
else
  local following = redis.call('XADD', stream, '*', 'i', id, unpack(ARGV, 11))
  redis.call('HSET', record, ':entry', following)
  redis.call('HDEL', record, ':next')
end
redis.call('XACK', stream, group, entry)
redis.call('XDEL', stream, entry)
return 1
