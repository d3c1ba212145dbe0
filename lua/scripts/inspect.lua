-- inspect.lua: what a limiter has left, without changing anything.
-- KEYS[1]  the state of the limiter
-- KEYS[2]  the epoch
-- ARGV[1]  MessagePack values, one after the other
--   given_now  in microseconds; 0: this server's clock
--   rules      the caller's rules as text
-- Returns  one MessagePack array: { now, the last booked slot or 0,
--          { paused until or 0, the status of the answer that refused or 0, 1 if it named the instant, the replica that reported it or
--            paused by hand }, { available permits of each rule } }
-- Atomic:  a single server, or keys of one hash tag

local state_key, epoch_key = KEYS[1], KEYS[2]
local given_now, rules = cmsgpack.unpack(ARGV[1])
local now, stored = Store.now(given_now), redis.call("MGET", state_key, epoch_key)

local state = State.load(state_key, stored[1], now)
local epoch = Epoch.open(epoch_key, stored[2], now, 0, "", 1)
State.reset(state, Epoch.reset_of(epoch, state_key))
local pause = state.pause
local at, till, replica = Epoch.pause_of(epoch, state_key)
local is_outdated = pause.status > 0 and at < pause.set_at
if at > pause.by_hand_at and not is_outdated then pause = { paused_until = till, status = 0, named = 0, replica = replica } end
if pause.paused_until <= now then pause = Pause.NONE end
if now < epoch.begun + Epoch.AWAY_FOR then ExternalUsage.leave_shares(state, epoch, now) end
local available = {}
for index, rule in ipairs(Rule.parse_own(rules, state)) do available[index] = State.available(state, now, rule) end
return cmsgpack.pack({
  now, state.timeline.at[state.timeline.size] or 0, { pause.paused_until, pause.status, pause.named, pause.replica }, available,
})
