-- write_back.lua: charge the permits that a replica was granted before the server lost them, or that it granted without the server.
-- KEYS[1]  the epoch
-- KEYS[2]  the state of the limiter
-- KEYS[3]  until when each state lives
-- KEYS[4]  when bookings of a state were last moved
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

local epoch_key, state_key, live_key, moved_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local given_now, known_epoch, run, settle, lease, replica, number, rules, was_away, sent, bookings = cmsgpack.unpack(ARGV[1])
local now, stored = Store.now(given_now), redis.call("MGET", epoch_key, state_key)

local epoch = Epoch.open(epoch_key, stored[1], now, known_epoch, run, settle, replica)
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

-- Takes a booking into the checkpoints that hold its instant.
local function take_late(at, permits)
  for place, checkpoint in pairs(state.checkpoints) do
    local rule = state.rules[place]
    -- A bucket that was refilled since counts as empty before.
    local is_seen = was_away or at > epoch.opens - Rule.span_exact(rule, rule.capacity)
    if is_seen then state.checkpoints[place] = rule.algorithm.take_late(rule, checkpoint, at, permits) end
  end
end

-- Charges the bookings: two ascending rows become one. An instant is the latest one that it may have been: no later window
-- is begun with less than was used in it.
local function charge()
  local timeline, in_force, is_one = state.timeline, state.rules, Rule.is_one
  local known_entries, known_permits, known_size, cell = timeline.at, timeline.permits, timeline.size, in_force.cell
  local entries, permits, size, known = {}, {}, 0, 1
  local function put(at, count)
    if size > 0 and is_one(in_force, cell, entries[size], at) then
      entries[size], permits[size] = at, permits[size] + count
    else
      size = size + 1
      entries[size], permits[size] = at, count
    end
  end
  local function put_known(till)
    while known <= known_size and known_entries[known] <= till do
      put(known_entries[known], known_permits[known])
      known = known + 1
    end
  end
  for index = 1, #bookings, 2 do
    local at, count = sent - bookings[index], bookings[index + 1]
    put_known(at)
    -- Bookings from before a reset do not count any more.
    if at > state.reset_at then
      put(at, count)
      take_late(at, count)
    end
  end
  put_known(math.huge)
  timeline.at, timeline.permits, timeline.size = entries, permits, size
end

if is_new() then
  -- A call to a server that stood still is carried out late. One that seems older than this, or from the future, is of another clock.
  local LATE_MAX, AHEAD_MAX = 60000000, 1000000
  if sent > now + AHEAD_MAX or now - sent > LATE_MAX then sent = now end
  charge()
end

local expires = max(State.expires(state), epoch.opens + Rule.longest_window(state.rules))
Epoch.keep(epoch_key, epoch, now, State.keep(state_key, stored[2], state, now, expires, live_key, moved_key, epoch))
return cmsgpack.pack(Epoch.answer(epoch, now))
