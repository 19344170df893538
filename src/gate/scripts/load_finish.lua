#!lua
-- Opens a sale that was loaded.
--
-- Guarantee: only for the load that has claimed the sale, and in one step: before it nothing can be reserved, after it
-- everything is there. A repeated call changes nothing.
--
-- KEYS  1 state  2 keys (untouched)  3 held (untouched)  4 buyers  5 tombs (untouched)
-- ARGV  1 epoch  2 the loader's instance  3 the number of its load
--       4 available  5 opens_at_us  6 closes_at_us or ''  7 limit per buyer or ''
--
-- Returns
--   1   the sale is loaded, by the caller
--   0   the load isn't the caller's any more; nothing was done

local state = redis.call('HMGET', KEYS[1], 'loading', 'loader', 'epoch')
if state[2] ~= ARGV[2] .. ':' .. ARGV[3] then
    return 0
end
if state[3] == ARGV[1] then
    return 1
end
if state[1] ~= ARGV[1] then
    return 0
end

redis.call('HSET', KEYS[1], 'epoch', ARGV[1], 'available', ARGV[4], 'opens_at_us', ARGV[5])
if ARGV[6] ~= '' then
    redis.call('HSET', KEYS[1], 'closes_at_us', ARGV[6])
end
if ARGV[7] ~= '' then
    redis.call('HSET', KEYS[1], 'limit', ARGV[7])
else
    redis.call('UNLINK', KEYS[4])
end
redis.call('HDEL', KEYS[1], 'loading', 'loading_since_us')
return 1
