-- Hands unfinished jobs back, uncharged, under their ids. May be sent again.
-- KEYS: 1 stream
-- ARGV: 1 group, 2 consumer, 3 the pseudo-consumer that takes them, then entry ids, 250 at most
-- Returns how many were handed back
local stream = KEYS[1]
local group, consumer, released = ARGV[1], ARGV[2], ARGV[3]
local moved = 0
for i = 4, #ARGV do
  local id = ARGV[i]
  local mine = redis.call('XPENDING', stream, group, id, id, 1, consumer)[1]
  if mine then
    local deliveries = math.max(mine[4] - 1, 0)
    redis.call('XCLAIM', stream, group, released, 0, id, 'RETRYCOUNT', deliveries, 'JUSTID')
    moved = moved + 1
  end
end
return moved
