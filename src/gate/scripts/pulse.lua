#!lua flags=no-writes
-- Reads what changes about a sale, at one instant.
--
-- KEYS  1 state  2 keys  3 held  4 buyers  5 tombs (the last three unread)
-- ARGV  none
--
-- Returns
--   {1}                              the sale isn't loaded
--   {2}                              it is being loaded, and the loader gave a sign within 2 s
--   {0, epoch, available, keys, changes}   keys: how many idempotency keys it knows; changes: how often units were taken
--                                          or given back, or keys forgotten, since it was loaded

local LOADER_SILENT_US = 2000000

local state = redis.call('HMGET', KEYS[1], 'epoch', 'available', 'changes', 'loading_since_us')
if not state[2] then
    if state[4] then
        local time = redis.call('TIME')
        if time[1] * 1000000 + time[2] - state[4] < LOADER_SILENT_US then
            return {2}
        end
    end
    return {1}
end
return {0, state[1], state[2], redis.call('HLEN', KEYS[2]), state[3] or '0'}
