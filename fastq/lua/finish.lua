-- Ends jobs that have a record, well. May be sent again.
-- KEYS: 1 stream, 2 deferred, 3 dead, 4 meta
-- ARGV: 1 group, 2 consumer, 3 control channel, 4 prefix of records, 5 prefix of results,
--       6 how many dead jobs are kept and 7 how many ms (0 for ever), then for each job: entry, id,
--       ms to keep its result (0 none, -1 for ever), envelope; 250 jobs at most
-- Returns how many were ended; an entry that is pending for nobody was ended before
local stream, deferred, dead, meta = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local group, consumer, control, records, results = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local most, age = ARGV[6], tonumber(ARGV[7])
local call, now = redis.call, now_ms()
local entries, ended_records, superseded, failed = {}, {}, 0, nil

-- The first outcome stays: of a run that was lost and then ended by another, this finds the result
-- there. A fence has to give way to the first, so there it is the pending entry that tells.
local function store(entry, result, found, keep, envelope)
  if found.fenced then
    if #call('XPENDING', stream, group, entry, entry, 1) > 0 then
      keep_result(result, keep, envelope)
    end
  elseif keep > 0 then
    call('SET', result, envelope, 'NX', 'PX', keep)
  elseif keep < 0 then
    call('SET', result, envelope, 'NX')
  end
end

local function finish(entry, id, keep, envelope, data)
  local record, result = records .. id, results .. id
  local found = data and unpacked(record, data)
  if not found or found.entry ~= entry then
    -- Its owner gives it up; anyone else has nothing to say.
    if #call('XPENDING', stream, group, entry, entry, 1, consumer) > 0 then
      supersede(stream, group, dead, meta, most, age, now, entry, id)
      superseded = superseded + 1
    end
    return
  elseif found.next then
    put_next(stream, deferred, control, record, result, id, found.next, now)
  else
    store(entry, result, found, keep, envelope)
    -- Its entry goes now, so the record is not believed, but its nonce may still count.
    if is_remembered(found, keep, now) then
      call('PEXPIRE', record, DONE_MS)
    else
      ended_records[#ended_records + 1] = record
    end
  end
  entries[#entries + 1] = entry
end

local function finish_all()
  local keys = {}
  for i = 9, #ARGV, 4 do
    keys[#keys + 1] = records .. ARGV[i]
  end
  local found = call('MGET', unpack(keys))
  for i = 8, #ARGV, 4 do
    local done, why = pcall(finish, ARGV[i], ARGV[i + 1], tonumber(ARGV[i + 2]), ARGV[i + 3],
      found[(i - 4) / 4])
    failed = done and failed or why -- the others are not to wait for it
  end
end

call('XACK', stream, group, '0-0')
finish_all()
if #ended_records > 0 then
  call('DEL', unpack(ended_records))
end
local ended = superseded
if #entries > 0 then
  ended = ended + call('XACK', stream, group, unpack(entries))
  call('XDEL', stream, unpack(entries))
end
if failed then
  return as_error(failed)
end
return ended
