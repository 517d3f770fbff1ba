-- Finds what was delivered to this consumer in a reply that got lost. May be sent again.
-- KEYS: 1 stream
-- ARGV: 1 group, 2 consumer, 3 where to go on ('-' at first), 4 entries a page,
--       5 bytes of payload a page, then the ids that the consumer holds
-- Returns where to go on ('' at the end), then the entries found, renewed but not charged
local stream = KEYS[1]
local group, consumer, cursor = ARGV[1], ARGV[2], ARGV[3]
local count, bytes = tonumber(ARGV[4]), tonumber(ARGV[5])
local held, found = {}, {}
for i = 6, #ARGV do
  held[ARGV[i]] = true
end
local page = redis.call('XPENDING', stream, group, cursor, '+', count, consumer)
for _, pending in ipairs(page) do
  local id = pending[1]
  if not held[id] then
    local entry = redis.call('XRANGE', stream, id, id)[1]
    if entry then
      redis.call('XCLAIM', stream, group, consumer, 0, id, 'JUSTID')
      found[#found + 1] = entry
      for _, field in ipairs(entry[2]) do
        bytes = bytes - #field
      end
    else
      redis.call('XACK', stream, group, id)
    end
  end
  if bytes <= 0 then
    return { '(' .. id, found }
  end
end
if #page < count then
  return { '', found }
end
return { '(' .. page[#page][1], found }
