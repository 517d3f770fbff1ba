-- Ends jobs that have a record, well. May be sent again.
-- KEYS: 1 stream, 2 deferred, 3 dead, 4 meta
-- ARGV: 1 group, 2 consumer, 3 control channel, 4 prefix of records, 5 prefix of results,
--       6 how many dead jobs are kept and 7 how many ms (0 for ever), 8 the first and 9 the last of
--       the entries, then for each job: entry, id, ms to keep its result (0 none, -1 for ever),
--       envelope; 250 jobs at most
-- Returns how many were ended; an entry that is pending for nobody was ended before
local stream, deferred, dead, meta = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local group, consumer, control, records, results = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local most, age, first, last = ARGV[6], tonumber(ARGV[7]), ARGV[8], ARGV[9]
local call, now = redis.call, now_ms()
local ended, entries = 0, {}

-- Which entries are this consumer's: one look at all of them, since one for each would cost more
-- than all else here.
local mine = {}
for _, pending in ipairs(call('XPENDING', stream, group, first, last, 2 * #ARGV, consumer)) do
  mine[pending[1]] = true
end

local function finish(entry, id, keep, envelope)
  if not mine[entry] and #call('XPENDING', stream, group, entry, entry, 1) == 0 then
    return
  end
  local record = records .. id
  local found = call('HMGET', record, ':entry', ':nonce', ':since', ':next')
  if found[1] == entry then
    end_record(stream, deferred, control, record, results .. id, id, found[2], found[3], found[4],
      now, tonumber(keep), envelope)
    entries[#entries + 1] = entry
    ended = ended + 1
  elseif mine[entry] then
    supersede(stream, group, dead, meta, most, age, now, entry, id)
    ended = ended + 1
  end
end

local function finish_all()
  for i = 10, #ARGV, 4 do
    finish(ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3])
  end
end

call('XACK', stream, group, '0-0')
local done, failed = pcall(finish_all)
if #entries > 0 then
  call('XACK', stream, group, unpack(entries))
  call('XDEL', stream, unpack(entries))
end
if not done then
  return type(failed) == 'table' and failed or redis.error_reply(failed)
end
return ended
