#!lua flags=allow-oom
-- Gives back what a batch of orders holds.
--
-- Guarantee: each order gives back exactly the units that it holds, once, and its buyer's allowance with them; from then on it
-- can't reserve any more. An order that holds nothing gives nothing back, but is remembered for an hour, so that its
-- own reservation can't come after its release.
--
-- Runs at full memory as well (allow-oom): it frees more than it takes.
--
-- KEYS  1 state  2 keys  3 held  4 buyers  5 tombs
-- ARGV  two columns of n values each: orders, each once; '1' to forget the idempotency key of the order, or '0'
--
-- Returns
--   {1}   the sale isn't loaded, or is being loaded; nothing was done, not even remembered
--   {0, available afterwards, units given back, orders that held nothing, epoch that the sale is loaded under}

local TOMB_US = 3600000000
-- Far above the releases of an hour that come before their reservation; a bound nevertheless.
local TOMBS = 100000
local SLICE = 4000

local available = redis.call('HGET', KEYS[1], 'available')
if not available then
    return {1}
end

local n = #ARGV / 2
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local stamp = time[1] .. string.format('%06d', time[2])

local held = {}
for from = 1, n, SLICE do
    for _, value in ipairs(redis.call('HMGET', KEYS[3], unpack(ARGV, from, math.min(from + SLICE - 1, n)))) do
        held[#held + 1] = value
    end
end

-- All that is to be done, found out before any of it is.
local gone, forgotten, tombs, allowances = {}, {}, {}, {}
local units, unknown = 0, 0
for i = 1, n do
    local order, forget = ARGV[i], ARGV[n + i] == '1'
    local quantity, digest, buyer
    if held[i] then
        quantity, digest, buyer = string.match(held[i], '^(%d+):%d+:(%x+):(.+)$')
        if not quantity then
            return redis.error_reply('ERR the reservation of ' .. order .. ' is unreadable')
        end
        units = units + quantity
        gone[#gone + 1] = order
        allowances[buyer] = (allowances[buyer] or 0) + quantity
        if forget then
            local entry = redis.call('HGET', KEYS[2], digest)
            if entry and string.sub(entry, 1, 36) == order then
                forgotten[#forgotten + 1] = digest
            end
        end
    else
        unknown = unknown + 1
    end
    -- The key of an order that isn't forgotten points to it and keeps its reservation from coming again.
    if forget or not held[i] then
        tombs[#tombs + 1] = stamp
        tombs[#tombs + 1] = order
    end
end

for from = 1, #gone, SLICE do
    redis.call('HDEL', KEYS[3], unpack(gone, from, math.min(from + SLICE - 1, #gone)))
end
for from = 1, #forgotten, SLICE do
    redis.call('HDEL', KEYS[2], unpack(forgotten, from, math.min(from + SLICE - 1, #forgotten)))
end
if redis.call('EXISTS', KEYS[4]) == 1 then
    for buyer, quantity in pairs(allowances) do
        if redis.call('HINCRBY', KEYS[4], buyer, -quantity) <= 0 then
            redis.call('HDEL', KEYS[4], buyer)
        end
    end
end
if #gone > 0 then
    available = redis.call('HINCRBY', KEYS[1], 'available', units)
    redis.call('HINCRBY', KEYS[1], 'changes', 1)
end
if #tombs > 0 then
    for from = 1, #tombs, SLICE do
        redis.call('ZADD', KEYS[5], unpack(tombs, from, math.min(from + SLICE - 1, #tombs)))
    end
    redis.call('ZREMRANGEBYSCORE', KEYS[5], '-inf', string.format('(%.0f', now - TOMB_US))
    redis.call('ZREMRANGEBYRANK', KEYS[5], 0, -TOMBS - 1)
    redis.call('PEXPIRE', KEYS[5], TOMB_US / 1000)
end

return {0, tonumber(available), units, unknown, tonumber(redis.call('HGET', KEYS[1], 'epoch'))}
