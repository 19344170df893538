#!lua
-- Adds orders to a sale that is being loaded.
--
-- Guarantee: only for the load that has claimed the sale. Orders that are there already are not counted again.
--
-- Not allowed to run when memory is full: refused before it begins.
--
-- KEYS  1 state  2 keys  3 held  4 buyers  5 tombs (untouched)
-- ARGV  1 epoch  2 the loader's instance  3 the number of its load
--       then five columns of n values each: digests; orders, each once; quantities; buyers; '1' when the order holds or owns
--       its units, otherwise '0'
--
-- Returns
--   1   added
--   0   the load isn't the caller's any more; nothing was done

local SLICE = 4000
local FIRST = 3

local n = (#ARGV - FIRST) / 5
local state = redis.call('HMGET', KEYS[1], 'loading', 'loader')
if state[1] ~= ARGV[1] or state[2] ~= ARGV[2] .. ':' .. ARGV[3] then
    return 0
end

local time = redis.call('TIME')
local stamp = time[1] .. string.format('%06d', time[2])

local new_keys, new_held, holders = {}, {}, {}
for i = FIRST + 1, FIRST + n do
    local digest, order, units, buyer = ARGV[i], ARGV[n + i], ARGV[2 * n + i], ARGV[3 * n + i]
    new_keys[#new_keys + 1] = digest
    new_keys[#new_keys + 1] = order .. ':' .. units
    if ARGV[4 * n + i] == '1' then
        new_held[#new_held + 1] = order
        new_held[#new_held + 1] = units .. ':' .. stamp .. ':' .. digest .. ':' .. buyer
        holders[#holders + 1] = {order, buyer, tonumber(units)}
    end
end

-- Units per buyer, of the orders that weren't there yet. Whether the sale has a limit is known only at the end.
local used = {}
for _, holder in ipairs(holders) do
    if redis.call('HEXISTS', KEYS[3], holder[1]) == 0 then
        used[holder[2]] = (used[holder[2]] or 0) + holder[3]
    end
end

for from = 1, #new_keys, SLICE do
    redis.call('HSET', KEYS[2], unpack(new_keys, from, math.min(from + SLICE - 1, #new_keys)))
end
for from = 1, #new_held, SLICE do
    redis.call('HSET', KEYS[3], unpack(new_held, from, math.min(from + SLICE - 1, #new_held)))
end
for buyer, units in pairs(used) do
    redis.call('HINCRBY', KEYS[4], buyer, units)
end
redis.call('HSET', KEYS[1], 'loading_since_us', stamp)
return 1
