#!lua flags=allow-oom
-- Begins to load a sale from the database: takes the old copy away and claims the load.
--
-- Guarantee: of all that try, the one with the highest epoch loads. A repeated call changes nothing.
-- Tombs stay: what must never reserve must not under a new epoch either.
--
-- Runs at full memory as well (allow-oom): its first command frees.
--
-- KEYS  1 state  2 keys  3 held  4 buyers  5 tombs (untouched)
-- ARGV  1 epoch  2 the loader's instance  3 the number of this load in it, rising
--
-- Returns
--   1   the load is the caller's
--   0   it isn't: this epoch or a newer one is loaded, or somebody else is about to load it

local LOADER_SILENT_US = 2000000

local epoch, instance, number = tonumber(ARGV[1]), ARGV[2], tonumber(ARGV[3])
local loader = instance .. ':' .. ARGV[3]
local state = redis.call('HMGET', KEYS[1], 'epoch', 'loading', 'loading_since_us', 'loader')
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

if state[1] and tonumber(state[1]) >= epoch then
    return 0
end
if state[2] then
    local loading = tonumber(state[2])
    if loading > epoch then
        return 0
    end
    if loading == epoch then
        if state[4] == loader then
            return 1
        end
        local theirs = string.match(state[4], '^' .. string.gsub(instance, '%-', '%%-') .. ':(%d+)$')
        if theirs then
            -- Our own: a later load restarts it, an earlier one's call comes too late.
            if tonumber(theirs) > number then
                return 0
            end
        elseif now - state[3] < LOADER_SILENT_US then
            return 0
        end
    end
end

redis.call('UNLINK', KEYS[1], KEYS[2], KEYS[3], KEYS[4])
redis.call('HSET', KEYS[1], 'loading', ARGV[1], 'loader', loader,
    'loading_since_us', time[1] .. string.format('%06d', time[2]))
return 1
