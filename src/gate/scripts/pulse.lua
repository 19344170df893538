#!lua flags=no-writes
-- Reads what changes about a sale, at one instant.
--
-- KEYS  1 state  2 keys  3 held  4 buyers  5 tombs (the last three unread)
-- ARGV  none
--
-- Returns
--   {1}                              the sale isn't loaded, or is being loaded
--   {0, epoch, available, keys, changes}   keys: how many idempotency keys it knows; changes: how often units were taken
--                                          or given back, or keys forgotten, since it was loaded

local state = redis.call('HMGET', KEYS[1], 'epoch', 'available', 'changes')
if not state[2] then
    return {1}
end
return {0, state[1], state[2], redis.call('HLEN', KEYS[2]), state[3] or '0'}
