-- report_upstream.lua: apply an upstream's signals about its quota to one limiter.
-- KEYS[1]  the epoch
-- KEYS[2]  the state of the limiter
-- KEYS[3]  the epoch of the earlier layout
-- KEYS[4]  until when each state lives
-- KEYS[5]  when bookings of a state were last moved
-- KEYS[6]  the state of the limiter in that layout
-- ARGV[1]  MessagePack values, one after the other; all times in microseconds
--   given_now    0: this server's clock
--   known_epoch  the latest epoch that the caller knows
--   run          the server's run as the caller knows it; empty: unknown; `?`: to be found out
--   settle       how long a new epoch takes to open; 0: there are no epochs
--   lease        how long a changed limit leaves its bookings where they are
--   replica      the calling replica
--   rules        the caller's rules as text
--   channel      the channel on which a pause is announced; none if empty
--   asked        {}, or the pause that the upstream asks for: how long, 0 if it names no instant; the length of a first pause without
--                one; the longest pause; how long ago the refused request was sent; by how much the pause may be longer, in parts of
--                1024; the status of the answer; how long ago the caller began to keep to it by itself, 0 if it did not
--   cost         permits that a request has cost beyond those that it had taken
--   refused      permits that the upstream refused and did not count: slot and permits by turns
--   remaining    permits that the upstream left of some of the rules: the rule's place from 0 on, permits, the length of the upstream's
--                window, the slot of the answered request, and how long after the slot the answer came, by turns
-- Returns  one MessagePack array: { { now, epoch, when it opens or 0, last reset or 0, memory }, paused until or 0, by how many permits
--          the external usage exceeds the expected one }
-- Atomic:  a single server, or keys of one hash tag
-- Expiry:  every key when nothing in it can matter any more, never earlier

local epoch_key, state_key, earlier_key, live_key, moved_key = unpack(KEYS)
local given_now, known_epoch, run, settle, lease, replica, rules, channel, asked, cost, refused, remaining = cmsgpack.unpack(ARGV[1])
local now, stored = Store.now(given_now), redis.call("MGET", epoch_key, state_key, earlier_key)
if stored[3] then Earlier.open(earlier_key, stored[3], 6, 2) end

local epoch = Epoch.open(epoch_key, stored[1], now, known_epoch, run, settle, replica, live_key)
if settle > 0 and not stored[2] then epoch = Epoch.without_state(epoch, live_key, state_key, now, settle) end
local state = State.load(state_key, stored[2], now)
Open.state(state, state_key, epoch, now, rules, lease, replica)

if cost > 0 then Search.charge_excess(state, now, cost) end
if #refused > 0 then UpstreamReport.observe_refused(state, now, refused) end
local drift, own_rules = 0, Rule.parse_own(rules, state)
for index = 1, #remaining, 5 do
  local place, permits, length, slot, took = unpack(remaining, index, index + 4)
  local rule = own_rules[place + 1]
  if rule then drift = drift + UpstreamReport.observe_remaining(state, now, rule, permits, length, slot, took) end
end
-- The pause comes last: bookings that it moves are placed beside the external usage noted above.
if #asked > 0 then
  local has_changed, pause = UpstreamReport.pause(state, now, asked, replica), state.pause
  Open.follow_pause(state, now, lease)
  if has_changed and channel ~= "" then
    -- A replica that misses the announcement learns of the pause by its next call.
    redis.pcall("PUBLISH", channel, string.format("pause %s %.0f %.0f %.0f %.0f %.0f",
      state_key, now, pause.paused_until, pause.status, pause.named, pause.replica))
  end
end
if state.external_usage then Open.follow_external_usage(state, now, lease) end

local paused_until, expires = State.paused_until(state, now), State.expires(state, now)
if now < epoch.opens then expires = max(expires, epoch.opens + Rule.longest_window(state.rules)) end
local lives_until = State.keep(state_key, stored[2], state, now, expires, live_key, moved_key, epoch)
if settle > 0 then Epoch.keep(epoch_key, epoch, now, lives_until) end
return cmsgpack.pack({ Epoch.answer(epoch, now), paused_until, drift })
