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
local CHUNK = 10

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
  local envelope = table.concat({ status, reason, now, now, tries }, ' ') .. '\n' .. failure
  to_dead(dead, meta, most, age, now, buried, function()
    end_record(stream, deferred, control, record, results .. id, id, found, now,
      tonumber(value_of(fields, 'k')) or keep, envelope)
  end)
end

-- A record, or an empty one and why it cannot be read.
local function unpack_record(record, data)
  -- MGET passes over keys of another type, which GET names.
  data = data or redis.pcall('GET', record)
  if not data then
    return {}, 'its record is missing'
  elseif type(data) == 'table' then
    return {}, data.err
  end
  bytes = bytes - #data
  local done, found = pcall(unpacked, record, data)
  if not done or #(found.fields or {}) % 2 ~= 0 then
    return {}, 'its record is damaged'
  end
  return found
end

local added, notes = {}, {}

-- True if the job was added to the stream.
local function promote(id, data)
  local record = records .. id
  local found, broken = unpack_record(record, data)
  if found.entry and lives(stream, deferred, id, found) then
    return false -- promoted before; only its place in the set is left
  elseif not found.fields then
    -- A key of another type is somebody's: it is left alone.
    refuse(id, broken and none or record, found, 'failed', 'undecodable',
      'fastq.decoders.UndecodableError',
      'The deferred job cannot be read: ' .. (broken or 'its entry is gone'))
    return false
  end
  local expires = value_of(found.fields, 'x')
  if expires and (tonumber(expires) or 0) <= now then
    refuse(id, record, found, 'expired', 'expired', 'fastq.errors.JobExpired',
      'It was due only after it had expired.')
    return false
  end
  local entry = redis.call('XADD', stream, '*', 'i', id, unpack(found.fields))
  added[#added + 1] = entry
  notes[#notes + 1] = record
  notes[#notes + 1] = pack({ entry = entry, nonce = found.nonce, since = found.since,
    fenced = found.fenced })
  return true
end

local due = redis.call('ZRANGEBYSCORE', deferred, '-inf', now, 'LIMIT', 0, count)
local moved, gone, failed = {}, {}, nil

local function promote_one(id, data)
  local done, what = pcall(promote, id, data)
  if not done then
    failed = what -- it stays where it was, and the others are not to wait for it
  elseif what then
    moved[#moved + 1] = id
  else
    gone[#gone + 1] = id
  end
end

-- In chunks: a few records are read with one command, as many as are likely to fit into what is
-- left of the bytes, by the size of those before.
local function promote_all()
  local first, size, left = 1, 1, bytes
  while first <= #due and bytes > 0 do
    local keys, last = {}, math.min(first + size - 1, #due)
    for i = first, last do
      keys[#keys + 1] = records .. due[i]
    end
    local found = redis.call('MGET', unpack(keys))
    for i = first, last do
      promote_one(due[i], found[i - first + 1])
      if bytes <= 0 then
        return
      end
    end
    size = math.max(1, math.min(CHUNK, math.floor(bytes / math.max(1, left - bytes) * last)))
    first = last + 1
  end
end

-- A write that frees memory makes those after it legal when the server is full; and what may not be
-- removed here must not be moved first.
redis.call('ZREM', deferred, '')
promote_all()
local err = #notes > 0 and refusal('MSET', unpack(notes))
if err then
  -- Without their records they would be promoted again and again.
  redis.call('XDEL', stream, unpack(added))
  moved, failed = {}, err
end
for _, ids in ipairs({ moved, gone }) do
  if #ids > 0 then
    redis.call('ZREM', deferred, unpack(ids))
  end
end
if failed then
  return as_error(failed)
end
local head = redis.call('ZRANGE', deferred, 0, 0, 'WITHSCORES')
return { #moved + #gone, head[2] and math.ceil(tonumber(head[2])) or -1, now }
