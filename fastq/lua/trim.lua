-- Drops dead jobs that are too many or too old. May be sent again.
-- KEYS: 1 dead, 2 meta
-- ARGV: 1 how many dead jobs are kept and 2 how many ms (0 for ever)
-- Returns how many were dropped; they are counted in meta
local dead, meta = KEYS[1], KEYS[2]
local most, age = ARGV[1], tonumber(ARGV[2])
return trim(dead, meta, most, age, now_ms())
