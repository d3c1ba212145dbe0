-- write_back.lua: charge the permits that a replica was granted before the server lost them, or that it granted without the server.
-- KEYS[1]  the epoch
-- KEYS[2]  the state of the limiter
-- KEYS[3]  the epoch of the earlier layout
-- KEYS[4]  until when each state lives
-- KEYS[5]  when bookings of a state were last moved
-- KEYS[6]  the state of the limiter in that layout
-- ARGV[1]  MessagePack values, one after the other; all times in microseconds
--   given_now    0: this server's clock
--   known_epoch  the epoch for which this is written; nothing is charged in another one
--   run          the server's run as the caller knows it; empty: unknown; `?`: to be found out
--   settle       how long a new epoch takes to open
--   lease        how long a changed limit leaves its bookings where they are
--   replica      the calling replica
--   number       the number of this write among those of its kind and the replica: a repeated one is carried out once
--   rules        the caller's rules as text
--   was_away     whether the permits were granted without the server; otherwise the server has lost them
--   sent         the latest instant that this clock may have shown when the call was sent; 0: unknown
--   bookings     ascending: how long before it was sent (below 0: after it) and permits by turns
-- Returns  one MessagePack array: { now, epoch, when it opens or 0, last reset or 0, memory }
-- Atomic:  a single server, or keys of one hash tag
-- Expiry:  every key when nothing in it can matter any more, never earlier

local epoch_key, state_key, earlier_key, live_key, moved_key = unpack(KEYS)
local given_now, known_epoch, run, settle, lease, replica, number, rules, was_away, sent, bookings = cmsgpack.unpack(ARGV[1])
local now, stored = Store.now(given_now), redis.call("MGET", epoch_key, state_key, earlier_key)
if stored[3] then Earlier.open(earlier_key, stored[3], 6, 2) end

local epoch = Epoch.open(epoch_key, stored[1], now, known_epoch, run, settle, replica, live_key)
if not stored[2] then epoch = Epoch.without_state(epoch, live_key, state_key, now, settle) end
if epoch.id ~= known_epoch then
  Epoch.keep(epoch_key, epoch, now, now)
  return cmsgpack.pack(Epoch.answer(epoch, now))
end
local state = State.load(state_key, stored[2], now)
Open.state(state, state_key, epoch, now, rules, lease, replica)

-- Notes the number of this write. Returns whether it is new.
local function is_new()
  local written, place = state.written_back, nil
  for index = 1, #written, 3 do
    if written[index] == replica then place = index end
  end
  if not place then
    place = #written + 1
    written[place], written[place + 1], written[place + 2] = replica, 0, 0
  end
  place = place + (was_away and 2 or 1)
  if written[place] >= number then return false end
  written[place] = number
  return true
end

if is_new() then
  -- A call to a server that stood still is carried out late. One that seems older than this, or from the future, is of another clock.
  local LATE_MAX, AHEAD_MAX = 60000000, 1000000
  if sent > now + AHEAD_MAX or now - sent > LATE_MAX then sent = now end
  local charged = was_away and {} or Recovery.charged_before(state, state_key, epoch, replica)
  local late = {}
  for index = 1, #bookings, 2 do
    local at = sent - bookings[index]
    late[index], late[index + 1] = at, bookings[index + 1] - (charged[at] or 0)
  end
  Recovery.charge_late(state, late)
end

local expires = max(State.expires(state, now), epoch.opens + Rule.longest_window(state.rules))
Epoch.keep(epoch_key, epoch, now, State.keep(state_key, stored[2], state, now, expires, live_key, moved_key, epoch))
return cmsgpack.pack(Epoch.answer(epoch, now))
