-- Enqueues the job of one tick of a cron entry. May be sent again: a tick that has been is over.
-- KEYS: 1 stream, 2 deferred, 3 record, 4 result, 5 cron
-- ARGV: 1 job id, 2 name of the entry, 3 tick in ms of TIME, 4 what to do: 'fire' it, fire it
--       'unique', or 'skip' it, 5 control channel, then the fields and values of its entry
-- Returns 1 if it fired, 0 if its last run is still there or it was skipped, -1 if it has been or a
-- later one, -2 if its time has not come; then TIME in ms
local stream, deferred, record, result, cron = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local id, name, tick, how, control = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4], ARGV[5]
local now = now_ms()
if tick > now then
  return { -2, now }
end
local last = tonumber(redis.call('HGET', cron, name) or '') or 0
if tick <= last then
  return { -1, now }
end
-- What may not be noted must not fire again and again; and where nothing was noted, no tick is missed.
redis.call('HSET', cron, name, last > 0 and last or tick - 1)
local fired = how == 'skip' and 0 or 1
if how == 'unique' then
  local found = read(record)
  if found and lives(stream, deferred, id, found) then
    fired = 0
  end
end
if fired == 1 then
  put(stream, deferred, control, record, id, { unpack(ARGV, 6) }, now, now, '', now)
  redis.call('DEL', result)
end
-- Last: an error before this must not lose the tick.
redis.call('HSET', cron, name, ARGV[3])
return { fired, now }
