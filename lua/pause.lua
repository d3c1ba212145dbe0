-- pause.lua: nothing is booked before an instant that the upstream, or an operator, named; then permits come one by one for a moment.
--
-- Twin of src/limiter/arithmetic/pause.rs. A state has one pause:
--   paused_until  nothing is booked before; `set_at`: when it was set
--   length        of the last pause without a named instant; 0 if one was named
--   paced_until   permits come one by one until then, `spacing` apart; `next`: where the next one may be booked; `probe`: how much
--                 further apart the second is from the first
--   by_hand_at    when it was last set or lifted by hand
--   status        of the answer that refused, 0: by hand; `named`: 1 if the answer named the instant; `replica`: the one that reported
--   held_until    it lasts at least until then, even if it is lifted: slots that it has voided may be used by who has not heard of it

local Pause
do
  -- The pause of a state that has never been paused, without the fields that are only read with a pause. It is shared and never changed.
  local NONE = { paused_until = 0, set_at = 0, length = 0, paced_until = 0, by_hand_at = 0, status = 0, named = 0, replica = 0, held_until = 0 }

  local function rare()
    -- The stored fields, in order.
    local FIELDS = {
      "paused_until", "set_at", "length", "paced_until", "spacing", "next", "probe", "by_hand_at", "status", "named", "replica",
      "held_until",
    }

    local function load(row)
      local pause = {}
      -- A row of an earlier version lacks the last ones.
      for index, field in ipairs(FIELDS) do pause[field] = row[index] or 0 end
      return pause
    end

    local function pack(pause)
      local row = {}
      for index, field in ipairs(FIELDS) do row[index] = pause[field] end
      return row
    end

    -- Returns the pause of a state, to be changed.
    local function own(state)
      if state.pause == NONE then state.pause = load({ 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }) end
      return state.pause
    end

    local function set(state, now, till, probe, status, named, replica)
      -- The longest time for which permits come one by one: a day's limit is not spread over the day.
      local PACED_MAX = 10000000
      local shortest
      for _, rule in ipairs(state.rules) do
        if not shortest or rule.window < shortest.window then shortest = rule end
      end
      local pause = own(state)
      pause.paused_until, pause.set_at, pause.next, pause.probe = till, now, till, probe
      pause.status, pause.named, pause.replica = status, named, replica
      pause.paced_until = till + probe + min(shortest.window, PACED_MAX)
      pause.spacing = shortest.whole + (shortest.part > 0 and 1 or 0)
    end

    -- Lets a pause last until an instant at least.
    local function hold(state, till)
      local pause = own(state)
      local more = max(till - pause.paused_until, 0)
      pause.held_until, pause.paused_until, pause.paced_until = till, pause.paused_until + more, pause.paced_until + more
    end

    -- Follows a pause set by hand at an instant; `till` that has passed lifts it. An upstream's later pause stays. Returns whether it
    -- had not been followed yet.
    local function follow(state, now, at, till, replica)
      if at <= state.pause.by_hand_at then return false end
      local pause = own(state)
      pause.by_hand_at = at
      if pause.status > 0 and at < pause.set_at then return false end
      pause.length = 0
      if till > now then
        set(state, now, till, 0, 0, 0, replica)
      else
        pause.status, pause.named, pause.replica = 0, 0, 0
        pause.paused_until = min(pause.paused_until, max(now, pause.held_until))
        pause.paced_until = pause.paused_until
      end
      return true
    end

    -- Moves a pause that was set ahead of now, by another clock, as if it were set now. It lasts no longer than it was to last.
    local function rebase(state, now)
      local ahead = state.pause.set_at - now
      if ahead <= 0 then return end
      local pause = own(state)
      for _, field in ipairs({ "paused_until", "set_at", "paced_until", "next", "held_until" }) do pause[field] = max(pause[field] - ahead, 0) end
      pause.by_hand_at = min(pause.by_hand_at, now)
    end

    -- Returns the first instant from `at` on that the pause leaves open.
    local function open_from(pause, at)
      at = max(at, pause.paused_until)
      if at < pause.paced_until then return max(at, min(pause.next, pause.paced_until)) end
      return at
    end

    -- Returns true if permits are granted one by one at an instant, as after a pause.
    local function is_paced(pause, at)
      return pause.paused_until <= at and at < pause.paced_until
    end

    -- Returns a pause for permits whose places are spaced already: nothing is booked before its end.
    local function unpaced(pause)
      return { paused_until = pause.paused_until, paced_until = pause.paused_until }
    end

    -- Notes permits booked at an instant.
    local function booked(pause, at, permits)
      if not is_paced(pause, at) then return end
      local probe = pause.next == pause.paused_until and pause.probe or 0
      pause.next = max(pause.next, at) + probe + min(pause.spacing * permits, pause.paced_until - pause.paused_until)
    end

    return {
      load = load, pack = pack, own = own, set = set, hold = hold, follow = follow, rebase = rebase, open_from = open_from, is_paced = is_paced,
      unpaced = unpaced, booked = booked,
    }
  end

  Pause = setmetatable({ NONE = NONE, rare = rare }, Lazy)
end
