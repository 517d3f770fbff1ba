-- Moves deferred jobs that are due into the stream; those that have expired to dead.
-- May be sent again.
-- KEYS: 1 stream, 2 deferred, 3 dead, 4 meta, 5 a key that never exists
-- ARGV: 1 control channel, 2 prefix of records, 3 prefix of results, 4 jobs at most,
--       5 bytes at most, 6 ms to keep a result (0 none, -1 for ever), 7 how many dead jobs are kept
--       and 8 how many ms (0 for ever)
-- Returns how many were due and moved, then when the next is due in ms of TIME (-1: none is there),
-- then TIME in ms
local stream, deferred, dead, meta, none = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local control, records, results = ARGV[1], ARGV[2], ARGV[3]
local count, bytes, keep = ARGV[4], tonumber(ARGV[5]), tonumber(ARGV[6])
local most, age = ARGV[7], tonumber(ARGV[8])
local now = now_ms()

local function value_of(fields, name)
  for i = 1, #fields, 2 do
    if fields[i] == name then
      return fields[i + 1]
    end
  end
  return nil -- said, since tonumber() takes nil, but not nothing
end

-- Ends a job that cannot run any more.
local function refuse(id, record, found, status, reason, kind, message)
  local fields = found.fields or {}
  local tries = value_of(fields, 't') or '0'
  local failure = cjson.encode({ type = kind, message = message, traceback = '' })
  local buried = { 'id', id, 'reason', reason, 'error', failure, 'tries', tries }
  for i = 1, #fields, 2 do
    if fields[i] ~= 't' then
      buried[#buried + 1] = fields[i]
      buried[#buried + 1] = fields[i + 1]
    end
  end
  to_dead(dead, meta, most, age, now, buried)
  local envelope = table.concat({ status, reason, now, now, tries }, ' ') .. '\n' .. failure
  end_record(stream, deferred, control, record, results .. id, id, found, now,
    tonumber(value_of(fields, 'k')) or keep, envelope)
end

-- A record, or an empty one and why it cannot be read.
local function read_record(record)
  local data = redis.pcall('GET', record)
  if not data then
    return {}, 'its record is missing'
  elseif data.err then
    return {}, data.err
  end
  bytes = bytes - #data
  local done, found = pcall(cmsgpack.unpack, data)
  if not done or type(found) ~= 'table' then
    return {}, 'its record is damaged'
  end
  return found, not (found.fields or found.entry) and 'its record has no fields' or nil
end

local function promote(id)
  local record = records .. id
  local found, broken = read_record(record)
  if found.entry and lives(stream, deferred, id, found) then
    return -- promoted before; only its place in the set is left
  elseif not found.fields then
    -- A key of another type is somebody's: it is left alone.
    refuse(id, broken and none or record, found, 'failed', 'undecodable',
      'fastq.decoders.UndecodableError',
      'The deferred job cannot be read: ' .. (broken or 'its entry is gone'))
    return
  end
  local expires = value_of(found.fields, 'x')
  if expires and (tonumber(expires) or 0) <= now then
    refuse(id, record, found, 'expired', 'expired', 'fastq.errors.JobExpired',
      'It was due only after it had expired.')
  else
    local noted = { nonce = found.nonce, since = found.since, fenced = found.fenced }
    add(stream, record, id, found.fields, noted)
  end
end

local due = redis.call('ZRANGEBYSCORE', deferred, '-inf', now, 'LIMIT', 0, count)
local moved, failed = {}, nil
-- A write that frees memory makes those after it legal when the server is full.
redis.call('DEL', none)
for _, id in ipairs(due) do
  local done, why = pcall(promote, id)
  if not done then
    failed = why
    break
  end
  moved[#moved + 1] = id
  if bytes <= 0 then
    break
  end
end
if #moved > 0 then
  redis.call('ZREM', deferred, unpack(moved))
end
if failed then
  return type(failed) == 'table' and failed or redis.error_reply(failed)
end
local head = redis.call('ZRANGE', deferred, 0, 0, 'WITHSCORES')
return { #moved, head[2] and math.ceil(tonumber(head[2])) or -1, now }
