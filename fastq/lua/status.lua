-- Where a job is. One script, since separate calls would answer "gone" in mid-move.
-- May be sent again: it writes nothing.
-- KEYS: 1 stream, 2 result
-- ARGV: 1 group, 2 job id, then the pseudo-consumers
-- Returns the first word of the outcome (complete, failed), or running, queued, not_found
local stream, result = KEYS[1], KEYS[2]
local group, id = ARGV[1], ARGV[2]
local word = string.match(redis.call('GETRANGE', result, 0, 31), '^%a+')
if word then
  return word
end
if not string.match(id, '^%d+%-%d+$') then
  return 'not_found'
end
local pending = redis.pcall('XPENDING', stream, group, id, id, 1)
if not pending.err and pending[1] then
  for i = 3, #ARGV do
    if pending[1][2] == ARGV[i] then
      return 'queued'
    end
  end
  return 'running'
end
local entry = redis.pcall('XRANGE', stream, id, id)
if entry.err then
  -- Digits that are too large for an id name no job; any other error is the caller's to see.
  return string.find(entry.err, 'Invalid stream ID', 1, true) and 'not_found' or entry
end
return entry[1] and 'queued' or 'not_found'
