-- Ends a job badly: its outcome is stored and the job moves to dead. May be sent again.
-- KEYS: 1 stream, 2 deferred, 3 dead, 4 meta, 5 record, 6 result
-- ARGV: 1 group, 2 consumer, 3 control channel, 4 how many dead jobs are kept and 5 how many ms
--       (0 for ever), 6 entry, 7 id, 8 ms to keep the result (0 none, -1 for ever), 9 envelope,
--       then the fields and values of the dead entry
-- Returns 1 if it was done, 0 if the entry is not pending for this consumer
local stream, deferred, dead, meta = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local record, result = KEYS[5], KEYS[6]
local group, consumer, control, most, age = ARGV[1], ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5])
local entry, id, keep, envelope = ARGV[6], ARGV[7], tonumber(ARGV[8]), ARGV[9]
if #redis.call('XPENDING', stream, group, entry, entry, 1, consumer) == 0 then
  return 0
end
local now, plain = now_ms(), id == entry
local found = not plain and read(record) or nil
redis.call('XACK', stream, group, '0-0')
if not plain and (not found or found.entry ~= entry) then
  supersede(stream, group, dead, meta, most, age, now, entry, id)
  return 1
end
to_dead(dead, meta, most, age, now, { unpack(ARGV, 10) }, function()
  if plain then
    keep_result(result, keep, envelope)
  else
    end_record(stream, deferred, control, record, result, id, found, now, keep, envelope)
  end
end)
redis.call('XACK', stream, group, entry)
redis.call('XDEL', stream, entry)
return 1
