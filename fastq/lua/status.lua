-- Where a job is. One script, since separate calls would answer "gone" in mid-move.
-- May be sent again: it writes nothing.
-- KEYS: 1 stream, 2 result, 3 record, 4 deferred
-- ARGV: 1 group, 2 job id, then the pseudo-consumers
-- Returns the first word of the outcome (complete, failed, expired), or running, queued, deferred,
-- not_found
local stream, result, record, deferred = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local group, id = ARGV[1], ARGV[2]

-- Where an entry is; nil if it is not there.
local function place(entry)
  local pending = redis.pcall('XPENDING', stream, group, entry, entry, 1)
  if not pending.err and pending[1] then
    for i = 3, #ARGV do
      if pending[1][2] == ARGV[i] then
        return 'queued'
      end
    end
    return 'running'
  end
  local found = redis.pcall('XRANGE', stream, entry, entry)
  if found.err then
    -- Digits that are too large for an id name no job; any other error is the caller's to see.
    return not string.find(found.err, 'Invalid stream ID', 1, true) and found or nil
  end
  return found[1] and 'queued' or nil
end

local data = redis.call('GET', record)
local entry = data and cmsgpack.unpack(data).entry
local where = entry and place(entry)
if not where and redis.call('ZSCORE', deferred, id) then
  where = 'deferred'
end
if where then
  return where
end
local word = string.match(redis.call('GETRANGE', result, 0, 31), '^%a+')
if word then
  return word
end
return string.match(id, '^%d+%-%d+$') and place(id) or 'not_found'
