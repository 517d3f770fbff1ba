-- Shared by the scripts that move jobs with a record; put before each of them.
-- A record is a map, packed as one string, since a hash of it takes twice as many commands a job:
-- entry (where the job is in the stream; none: deferred), nonce and since (of its enqueueing),
-- fields (of its entry to be, while it is deferred), next (what it enqueues when it ends), fenced
-- (its result is a fence until it ends). Replaced whole by SET, which ends a TTL, too.

local DONE_MS = 60000 -- how long an ended job is remembered, in case its enqueueing is sent again
local LOOK_MS = 1000 -- the promoter looks at least so often, so later jobs need not wake it
local ONCE = '1' -- the nonce of an id that was made for one enqueueing
local pack = cmsgpack.pack

local function now_ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- A packed record as a table.
local function unpacked(record, data)
  local done, found = pcall(cmsgpack.unpack, data)
  if not done or type(found) ~= 'table' then
    error('WRONGTYPE The key ' .. record .. ' holds no record of fastq', 0)
  end
  return found
end

-- A record as a table; nil if there is none.
local function read(record)
  local data = redis.call('GET', record)
  return data and unpacked(record, data) or nil
end

-- Why a command is refused, or nil if it was done.
local function refusal(...)
  local reply = redis.pcall(...)
  return type(reply) == 'table' and reply.err or nil
end

-- True if the record's place holds the job: only then is it believed.
local function lives(stream, deferred, id, found)
  if found.entry then
    return #redis.call('XRANGE', stream, found.entry, found.entry) > 0
  end
  return redis.call('ZSCORE', deferred, id) ~= false
end

-- Tells the leader of a job that is due before it would look. Only a hint: it may be refused.
local function wake(deferred, control, id, due, now)
  if due < now + LOOK_MS and redis.call('ZRANGE', deferred, 0, 0)[1] == id then
    redis.pcall('PUBLISH', control, 'wake')
  end
end

-- Adds an entry, and notes it in the record. Where that is refused (ACL), it is taken out again.
local function add(stream, record, id, fields, noted)
  noted.entry = redis.call('XADD', stream, '*', 'i', id, unpack(fields))
  local err = refusal('SET', record, pack(noted))
  if err then
    redis.call('XDEL', stream, noted.entry)
    error(err, 0)
  end
end

-- Defers a job, and notes it in the record; likewise.
local function defer(deferred, record, id, due, noted)
  redis.call('ZADD', deferred, due, id)
  local err = refusal('SET', record, pack(noted))
  if err then
    redis.call('ZREM', deferred, id)
    error(err, 0)
  end
end

-- What a script answers with when this stopped it: 6.2 raises texts, later servers tables.
local function as_error(why)
  return type(why) == 'table' and why or redis.error_reply(why)
end

-- Puts a job into the stream, or defers it.
local function put(stream, deferred, control, record, id, fields, due, now, nonce, since)
  local noted = { nonce = nonce, since = since }
  if due > now or since < now then
    fields[#fields + 1] = 'e'
    fields[#fields + 1] = since
  end
  if due <= now then
    add(stream, record, id, fields, noted)
    return
  end
  noted.fields = fields
  defer(deferred, record, id, due, noted)
  wake(deferred, control, id, due, now)
end

-- Dead jobs are capped by count and age; what that drops is counted.
local function trim(dead, meta, most, age, now)
  local dropped = redis.call('XTRIM', dead, 'MAXLEN', most)
  if age > 0 then
    dropped = dropped + redis.call('XTRIM', dead, 'MINID', now - age)
  end
  if dropped > 0 then
    redis.call('HINCRBY', meta, 'dead_dropped', dropped)
  end
  return dropped
end

-- Buries a job; `note` stores its end. Where that is refused (ACL), it is not dead: its end will be
-- said again, and would bury it once more. Its entry is removed after this: that must not be undone.
local function to_dead(dead, meta, most, age, now, fields, note)
  local buried = redis.call('XADD', dead, '*', unpack(fields))
  local done, why = pcall(note)
  if not done then
    redis.call('XDEL', dead, buried)
    error(why, 0)
  end
  trim(dead, meta, most, age, now)
end

-- True if an end has to be remembered by the record: otherwise it is too long ago for its enqueueing
-- to be sent again, or the result tells of it.
local function is_remembered(found, keep, now)
  if (found.nonce or '') == '' or (found.since or 0) + DONE_MS < now then
    return false
  end
  return found.nonce ~= ONCE or (keep >= 0 and keep < DONE_MS)
end

local function keep_result(result, keep, envelope)
  if keep > 0 then
    redis.call('SET', result, envelope, 'PX', keep)
  elseif keep < 0 then
    redis.call('SET', result, envelope)
  else
    redis.call('DEL', result) -- the fence of a second life
  end
end

-- Enqueues what a run has left to be enqueued at its end. The result of that one counts.
local function put_next(stream, deferred, control, record, result, id, job, now)
  redis.call('DEL', result)
  put(stream, deferred, control, record, id, job.fields, job.due, now, job.nonce, job.since)
end

-- What every bad end of a job with a record does: its result, then what it wants to be enqueued as
-- next, or else the memory of its end.
local function end_record(stream, deferred, control, record, result, id, found, now, keep, envelope)
  if found.next then
    put_next(stream, deferred, control, record, result, id, found.next, now)
    return
  end
  keep_result(result, keep, envelope)
  if is_remembered(found, keep, now) then
    local noted = { entry = found.entry, nonce = found.nonce, since = found.since }
    redis.call('SET', record, pack(noted), 'PX', DONE_MS)
  else
    redis.call('DEL', record)
  end
end

-- Ends an entry that its record does not name: another run of the job counts.
local function supersede(stream, group, dead, meta, most, age, now, entry, id)
  local fields = { 'id', id, 'reason', 'superseded', 'error', '' }
  local found = redis.call('XRANGE', stream, entry, entry)[1]
  for i = 1, found and #found[2] or 0, 2 do
    if found[2][i] ~= 'i' then
      fields[#fields + 1] = found[2][i]
      fields[#fields + 1] = found[2][i + 1]
    end
  end
  to_dead(dead, meta, most, age, now, fields, function() end)
  redis.call('XACK', stream, group, entry)
  redis.call('XDEL', stream, entry)
end

