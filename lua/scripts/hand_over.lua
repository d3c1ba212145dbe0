-- hand_over.lua: write some of the states in the earlier layout, too, before its replicas are granted anything.
-- A replica of the earlier layout that starts begins an epoch of its layout, which settles for a while: until then the states must be there.
-- KEYS[1]  until when each state lives
-- KEYS[2]  the epoch of the earlier layout
-- ARGV[1]  MessagePack values, one after the other; all times in microseconds
--   given_now  0: this server's clock
--   settle     how long the earlier layout's epoch settles at least, while states are left to be written
--   from       the instant until which the first of the states lives; 0: all
--   names      of each limiter, the key of its state without a partition, and the same in the earlier layout, by turns
-- Returns  one MessagePack array: { the `from` of the next call; 0: all states are written }
-- Atomic:  a single server, or keys of one hash tag: those of the states, too, which KEYS[1] names

local live_key, earlier_key = KEYS[1], KEYS[2]
local given_now, settle, from, names = cmsgpack.unpack(ARGV[1])
local now = Store.now(given_now)

-- As many as take less than 5 ms.
local STATES_MAX = 50
local first = string.format("%.0f", max(from, now))
-- Behind them stands the set itself, for ever (Epoch.check_live).
local found = redis.call("ZRANGEBYSCORE", live_key, first, "8999999999999999", "WITHSCORES", "LIMIT", 0, STATES_MAX)
local epoch_text = redis.call("MGET", earlier_key)[1]
if not epoch_text then return cmsgpack.pack({ 0 }) end
Earlier.open(earlier_key, epoch_text, #KEYS + 1, 1)

local own_keys = {}
for index = 1, #names, 2 do own_keys[names[index]] = names[index + 1] end

-- Returns the key of a state in the earlier layout; nil for a limiter that the caller does not know.
local function earlier_key_of(key)
  if own_keys[key] then return own_keys[key] end
  local whole, partition = string.match(key, "^(.*)(:%x+)$")
  return own_keys[whole] and own_keys[whole] .. partition
end

local function hand_over(key, text)
  local state = State.load(key, text, now)
  Earlier.keys[key] = earlier_key_of(key)
  if not Earlier.keys[key] or state.lives_until <= now or state.union == "" then return end
  local row = Earlier.read(key)
  if row and Earlier.is_marked(row) then return end
  if row then Earlier.adopt(state, key, now) end
  local lives_until = state.lives_until
  Earlier.keep(key, State.pack(state), now, lives_until)
end

for index = 1, #found, 2 do
  local key = found[index]
  local text = redis.call("MGET", key)[1]
  if text then hand_over(key, text) end
end
if #found < 2 * STATES_MAX then return cmsgpack.pack({ 0 }) end

-- More states are left: the earlier layout goes on settling.
local epoch, last = Earlier.epoch, tonumber(found[#found])
epoch[3] = max(epoch[3], now + settle)
epoch[4] = max(epoch[4], epoch[3])
redis.call("SET", earlier_key, cmsgpack.pack(epoch), "PX", ceil((epoch[4] - now) / 1000))
return cmsgpack.pack({ last > from and last or last + 1 })
