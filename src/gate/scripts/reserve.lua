#!lua
-- Reserves units for a batch of orders, in the order in which they are given.
--
-- Guarantee: all of it or nothing (every check comes before the first write), and each order at most once: repeated,
-- it answers the same and takes nothing more. Never takes more than is available. A smaller request may still be admitted after
-- a larger one was refused.
--
-- Not allowed to run when memory is full (no allow-oom): refused before it begins.
--
-- KEYS  1 state  2 keys  3 held  4 buyers  5 tombs
-- ARGV  four columns of n values each: idempotency digests; orders; quantities (decimal, no sign); buyers
--
-- Returns
--   {1}                                          the sale isn't loaded
--   {2}                                          it is being loaded, and the loader gave a sign within 2 s
--   {0, epoch, available afterwards, verdicts, order, order, ...}
-- with one letter per request in verdicts:
--   A  admitted: the order holds its units (taken now, or by an earlier call with this order)
--   R  replay: the digest belongs to another order of the same quantity; these orders follow, in order
--   K  the digest belongs to an order of another quantity
--   X  the order has been released, or must never reserve
--   N  not open yet        C  closed        L  over the buyer's limit        S  too few units

local LOADER_SILENT_US = 2000000
-- Lua puts at most 8,000 values on its stack.
local SLICE = 4000

local n = #ARGV / 4
local state = redis.call('HMGET', KEYS[1],
    'available', 'epoch', 'opens_at_us', 'closes_at_us', 'limit', 'loading_since_us')
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

if not state[1] then
    if state[6] and now - state[6] < LOADER_SILENT_US then
        return {2}
    end
    return {1}
end

local available = tonumber(state[1])
local opens_at = tonumber(state[3])
local closes_at = tonumber(state[4])
local limit = tonumber(state[5])

-- What the key has for ARGV[first] .. ARGV[last].
local function fetch(command, key, first, last)
    if last < first then
        return {}
    end
    if last - first < SLICE then
        return redis.call(command, key, unpack(ARGV, first, last))
    end
    local found = {}
    for from = first, last, SLICE do
        for _, value in ipairs(redis.call(command, key, unpack(ARGV, from, math.min(from + SLICE - 1, last)))) do
            found[#found + 1] = value
        end
    end
    return found
end

-- Sets the fields of the hash to the values; they alternate in `values`.
local function store(key, values)
    for from = 1, #values, SLICE do
        redis.call('HSET', key, unpack(values, from, math.min(from + SLICE - 1, #values)))
    end
end

local known = fetch('HMGET', KEYS[2], 1, n)
local tombs = redis.call('EXISTS', KEYS[5]) == 1 and fetch('ZMSCORE', KEYS[5], n + 1, 2 * n)
local used = limit and fetch('HMGET', KEYS[4], 3 * n + 1, 4 * n)

-- What this batch has done so far: digest -> entry, buyer -> units.
local fresh, fresh_used = {}, {}
local new_keys, new_held = {}, {}
local verdicts, replayed = {}, {}
local reserved_at = ':' .. time[1] .. string.format('%06d', time[2]) .. ':'
local taken = 0

for i = 1, n do
    local digest, order, units, buyer = ARGV[i], ARGV[n + i], ARGV[2 * n + i], ARGV[3 * n + i]
    local quantity = tonumber(units)
    if not quantity or quantity < 1 then
        return redis.error_reply('ERR a quantity must be positive')
    end
    local entry = order .. ':' .. units
    local stored = fresh[digest] or known[i]
    local verdict
    if stored then
        if stored == entry then
            local holds = fresh[digest] or redis.call('HEXISTS', KEYS[3], order) == 1
            verdict = holds and 'A' or 'X'
        elseif string.sub(stored, 38) == units then
            verdict = 'R'
            replayed[#replayed + 1] = string.sub(stored, 1, 36)
        else
            verdict = 'K'
        end
    elseif tombs and tombs[i] then
        verdict = 'X'
    elseif closes_at and now >= closes_at then
        verdict = 'C'
    elseif now < opens_at then
        verdict = 'N'
    else
        local used_before = limit and (fresh_used[buyer] or tonumber(used[i] or 0))
        if limit and used_before + quantity > limit then
            verdict = 'L'
        elseif taken + quantity > available then
            verdict = 'S'
        else
            verdict = 'A'
            taken = taken + quantity
            fresh[digest] = entry
            if limit then
                fresh_used[buyer] = used_before + quantity
            end
            local k = #new_keys
            new_keys[k + 1], new_keys[k + 2] = digest, entry
            new_held[k + 1], new_held[k + 2] = order, units .. reserved_at .. digest .. ':' .. buyer
        end
    end
    verdicts[i] = verdict
end

if taken > 0 then
    store(KEYS[2], new_keys)
    store(KEYS[3], new_held)
    if limit then
        local new_used = {}
        for buyer, units in pairs(fresh_used) do
            new_used[#new_used + 1] = buyer
            new_used[#new_used + 1] = string.format('%d', units)
        end
        store(KEYS[4], new_used)
    end
    available = redis.call('HINCRBY', KEYS[1], 'available', -taken)
    redis.call('HINCRBY', KEYS[1], 'changes', 1)
end

local reply = {0, state[2], available, table.concat(verdicts)}
for i = 1, #replayed do
    reply[4 + i] = replayed[i]
end
return reply
