-- Ends one job well where a batch was refused (maxmemory). May be sent again.
-- KEYS: 1 stream, 2 result
-- ARGV: 1 group, 2 entry id, 3 ms to keep the result (0 none, -1 for ever), 4 envelope
-- Returns 1 if it was done, 0 if the entry is pending for nobody
local stream, result = KEYS[1], KEYS[2]
local group, id, keep, envelope = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]
if #redis.call('XPENDING', stream, group, id, id, 1) == 0 then
  return 0
end
redis.call('XACK', stream, group, '0-0')
if keep > 0 then
  redis.call('SET', result, envelope, 'NX', 'PX', keep)
elseif keep < 0 then
  redis.call('SET', result, envelope, 'NX')
end
redis.call('XACK', stream, group, id)
redis.call('XDEL', stream, id)
return 1
