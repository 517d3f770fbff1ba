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

-- The fields of an entry that are known by name; a job with others has `:more`.
local NAMES = { 'f', 'd', 'o', 'k', 'x', 't', 'e', 'u' }
local KNOWN = { f = true, d = true, o = true, k = true, x = true, t = true, e = true, u = true }

-- A record's own fields, those of the entry to be, their names, and why it cannot be read.
local function read(record)
  local found = redis.pcall('HMGET', record, ':entry', ':nonce', ':since', ':more', unpack(NAMES))
  local own, fields, names, n = {}, {}, NAMES, 0
  if found.err then
    return own, fields, names, found.err
  end
  own.entry, own.nonce, own.since = found[1], found[2], found[3]
  for i = 1, #NAMES do
    local value = found[4 + i]
    if value then
      fields[n + 1], fields[n + 2] = NAMES[i], value
      own[NAMES[i]] = value
      n = n + 2
    end
  end
  bytes = bytes - #(own.d or '')
  if found[4] then
    names, n = { ':more', unpack(NAMES) }, #fields
    local all = redis.call('HGETALL', record)
    for i = 1, #all, 2 do
      if string.byte(all[i]) ~= 58 and not KNOWN[all[i]] then
        fields[n + 1], fields[n + 2] = all[i], all[i + 1]
        names[#names + 1] = all[i]
        n = n + 2
      end
    end
  end
  return own, fields, names
end

-- Ends a job that cannot run any more.
local function refuse(id, record, own, fields, status, reason, kind, message)
  local failure = cjson.encode({ type = kind, message = message, traceback = '' })
  local tries = own.t or '0'
  local buried = { 'id', id, 'reason', reason, 'error', failure, 'tries', tries }
  for i = 1, #fields, 2 do
    if fields[i] ~= 't' then
      buried[#buried + 1] = fields[i]
      buried[#buried + 1] = fields[i + 1]
    end
  end
  to_dead(dead, meta, most, age, now, buried)
  local envelope = table.concat({ status, reason, now, now, tries }, ' ') .. '\n' .. failure
  end_record(stream, deferred, control, record, results .. id, id, own.nonce,
    own.since, nil, now, tonumber(own.k) or keep, envelope)
end

local function promote(id)
  local record = records .. id
  local own, fields, names, broken = read(record)
  if own.entry and lives(stream, deferred, id, own.entry) then
    return -- promoted before; only its place in the set is left
  elseif #fields == 0 then
    -- A key of another type is somebody's: it is left alone.
    refuse(id, broken and none or record, own, fields, 'failed', 'undecodable',
      'fastq.decoders.UndecodableError',
      'The deferred job cannot be read: ' .. (broken or 'its record is missing'))
  elseif own.x and (tonumber(own.x) or 0) <= now then
    redis.call('HDEL', record, unpack(names))
    refuse(id, record, own, fields, 'expired', 'expired', 'fastq.errors.JobExpired',
      'It was due only after it had expired.')
  else
    local entry = redis.call('XADD', stream, '*', 'i', id, unpack(fields))
    local err = refusal('HSET', record, ':entry', entry)
    if err then
      redis.call('XDEL', stream, entry)
      error(err, 0)
    end
    redis.call('HDEL', record, unpack(names))
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
