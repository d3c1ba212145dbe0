-- upstream_report.lua: the signals in an upstream's answers: refused permits, permits left of its quota, a pause.
--
-- Twin of `LimiterState::{observe_refused, observe_remaining}` and `Pause::ask` in src/limiter/arithmetic/.

local UpstreamReport
do
  -- Those of a cell are kept as one, at the latest slot: there are no more of them than cells.
  local function refuse(usage, now, rule, slots)
    local kept, place_of, known, window, cell = {}, {}, usage.refused, rule.window, rule.cell
    if usage.since == 0 then usage.since = now end
    local function keep(slot, permits)
      local first = Rule.cell_start(slot, cell)
      local place = place_of[first]
      if not place then
        place = #kept + 1
        place_of[first], kept[place], kept[place + 1] = place, slot, 0
      end
      kept[place], kept[place + 1] = max(kept[place], slot), kept[place + 1] + permits
    end
    for index = 1, #known, 2 do
      if known[index] + 2 * window > now then keep(known[index], known[index + 1]) end
    end
    for index = 1, #slots, 2 do keep(slots[index], slots[index + 1]) end
    usage.refused = kept
  end

  -- Returns the refused permits of slots between two instants, both included.
  local function refused_between(usage, from, till)
    local sum, known = 0, usage.refused
    for index = 1, #known, 2 do
      local slot = known[index]
      if from <= slot and slot <= till then sum = sum + known[index + 1] end
    end
    return sum
  end

  -- Notes the permits in use by others. Returns by how many they exceed the expected ones.
  local function note_usage(usage, now, window, permits)
    if now >= usage.since + window then
      usage.permits = max(usage.seen, usage.before)
      usage.before, usage.seen, usage.since = usage.seen, 0, now
    end
    local more = max(permits - usage.permits, 0)
    usage.seen, usage.permits = max(usage.seen, permits), max(usage.permits, permits)
    return more
  end

  -- Notes permits that the upstream refused and did not count: slots and permits by turns. They stay booked.
  local function observe_refused(state, now, slots)
    local usages = ExternalUsage.of(state)
    for index, rule in ipairs(state.rules) do
      if rule.algorithm.window_start then refuse(usages[index], now, rule, slots) end
    end
  end

  -- Notes the permits that the upstream left of a rule in its window of `length`. They stand in the answer to the request of `slot`,
  -- which came `took` after the slot. Returns by how many permits the external usage exceeds the expected one.
  local function observe_remaining(state, now, rule, permits, length, slot, took)
    -- Requests overtake each other by at most this part of a window.
    local OVERTAKEN_PART = 100
    local place = Rule.position(state.rules, rule)
    if not place then return 0 end
    local apart, window_start = min(took, floor(rule.window / OVERTAKEN_PART)), rule.algorithm.window_start
    local till = slot + apart
    if not window_start then
      local drift = max(State.available(state, min(till, now), rule) - permits, 0)
      if drift > 0 then Search.charge_at(state, now, drift) end
      return drift
    end
    -- The bookings to compare with are gone.
    if slot + rule.window <= now then return 0 end
    local usage, from = ExternalUsage.of(state)[place], max(window_start(rule, slot, length) - apart, 0)
    local own = max(Timeline.held_between(state.timeline, from, till) - refused_between(usage, from, till), 0)
    return note_usage(usage, now, rule.window, max(max(rule.rate - permits, 0) - own, 0))
  end

  -- Returns the length of a pause without a named instant: twice the last one's, halved for each of its lengths that has passed.
  local function grown(pause, now, fallback)
    if pause.length == 0 then return fallback end
    local quiet = min(floor((now - pause.paused_until) / pause.length), 60)
    return max(floor(2 * pause.length / 2 ^ quiet), fallback)
  end

  -- Pauses a state as the upstream asks for it: how long, 0 if it names no instant; the length of a first pause without one; the longest
  -- pause; how long ago the refused request was sent; by how much the pause may be longer, in parts of 1024; the status of the answer.
  -- A longer pause is never shortened, and a request that was sent before the last pause began counts only if its answer named an
  -- instant. A pause that a replica has kept to by itself comes with the time since it was made, else 0: it changes nothing if an
  -- operator has acted since. Returns whether anything has changed.
  local function pause(state, now, asked, replica)
    -- The longest time for which the first request stands alone after a pause that was too short.
    local PROBE_MAX = 1000000
    -- A pause is longer by at most this part, and at most this time: other callers wait for the same instant.
    local JITTER_PART, JITTER_MAX = 16, 250000
    local wait, fallback, longest, sent_ago, jitter, status, made_ago = unpack(asked)
    local before, length, named = state.pause, 0, wait > 0 and 1 or 0
    if made_ago > 0 and max(now - made_ago, 0) <= before.by_hand_at then return false end
    if named == 1 then
      wait = min(wait, longest)
    else
      if now < before.paused_until or max(now - sent_ago, 0) <= before.set_at then return false end
      length = min(grown(before, now, fallback), longest)
      wait = length
    end
    local till = now + wait + floor(min(floor(wait / JITTER_PART), JITTER_MAX) * min(jitter, 1024) / 1024)
    if till <= before.paused_until then return false end
    Pause.own(state).length = length
    Pause.set(state, now, till, length > fallback and min(length, PROBE_MAX) or 0, status, named, replica)
    return true
  end

  UpstreamReport = { observe_refused = observe_refused, observe_remaining = observe_remaining, pause = pause }
end
