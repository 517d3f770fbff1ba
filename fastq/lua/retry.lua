-- Lets a job run again: defers it, or puts it back into the stream. May be sent again.
-- KEYS: 1 stream, 2 deferred, 3 dead, 4 meta, 5 record, 6 result
-- ARGV: 1 group, 2 consumer, 3 control channel, 4 how many dead jobs are kept and 5 how many ms
--       (0 for ever), 6 entry, 7 id, 8 ms to defer by, 9 when it was enqueued first,
--       then the fields and values of its next entry
-- Returns 1 if it was done, 0 if the entry is not pending for this consumer
local stream, deferred, dead, meta = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local record, result = KEYS[5], KEYS[6]
local group, consumer, control, most, age = ARGV[1], ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5])
local entry, id, delay, since = ARGV[6], ARGV[7], tonumber(ARGV[8]), tonumber(ARGV[9])
if #redis.call('XPENDING', stream, group, entry, entry, 1, consumer) == 0 then
  return 0
end
local now, plain = now_ms(), id == entry
local found = not plain and read(record) or nil
redis.call('ZSCORE', deferred, id) -- a key of another type shows before anything is written
redis.call('XACK', stream, group, '0-0')
if not plain and (not found or found.entry ~= entry) then
  supersede(stream, group, dead, meta, most, age, now, entry, id)
  return 1
end
local noted = found or { nonce = '', since = since, fenced = true }
local fields = { unpack(ARGV, 10) }
noted.entry, noted.next = nil, nil -- the next run will say again what comes after it

-- A zombie's SET NX must fail from now on; the last run's outcome overwrites the fence. Without it,
-- or without the record, the next run must not be there either.
local function fence(undo)
  local err = plain and refusal('SET', result, '~')
  if err then
    undo()
    redis.call('DEL', record)
    error(err, 0)
  end
end

if delay > 0 then
  noted.fields = fields
  defer(deferred, record, id, now + delay, noted)
  fence(function() redis.call('ZREM', deferred, id) end)
  wake(deferred, control, id, now + delay, now)
else
  add(stream, record, id, fields, noted)
  fence(function() redis.call('XDEL', stream, noted.entry) end)
end
redis.call('XACK', stream, group, entry)
redis.call('XDEL', stream, entry)
return 1
