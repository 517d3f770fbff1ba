-- Enqueues a job that has a record: named, deferred or expiring. May be sent again: the nonce tells.
-- KEYS: 1 stream, 2 deferred, 3 record, 4 result
-- ARGV: 1 job id, 2 nonce, 3 ms to defer by ('' at once), 4 ms of TIME to defer until (''),
--       5 ms until it expires (''), 6 control channel, 7 group, 8 the entry of the run that
--       enqueues its own job anew (''), 9 its consumer, then the entry's fields and values
-- Returns 1 if the job was there already and goes on as it was, else 0
local stream, deferred, record, result = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local id, nonce, defer_by, defer_until, expires = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local control, group, runs, consumer = ARGV[6], ARGV[7], ARGV[8], ARGV[9]
local found = read(record)
if found and found.nonce == nonce then
  return 0
elseif nonce == ONCE and redis.call('EXISTS', result) == 1 then
  return 0 -- nobody else has this id: it has run and ended
end
local now = now_ms()
local fields = { unpack(ARGV, 10) }
if expires ~= '' then
  fields[#fields + 1] = 'x'
  fields[#fields + 1] = now + expires
end
local due = tonumber(defer_until) or now + (tonumber(defer_by) or 0)
if found and lives(stream, deferred, id, found) then
  if runs == '' or runs ~= found.entry
    or #redis.call('XPENDING', stream, group, runs, runs, 1, consumer) == 0 then
    return 1
  elseif found.next then
    return found.next.nonce == nonce and 0 or 1
  end
  -- The run's own job: it is enqueued when the run has ended.
  found.next = { nonce = nonce, due = due, since = now, fields = fields }
  redis.call('SET', record, pack(found))
  return 0
end
put(stream, deferred, control, record, id, fields, due, now, nonce, now)
if nonce ~= ONCE then
  redis.call('DEL', result)
end
return 0
