-- recovery.lua: brings a state through a loss of the server's memory, or of a part of it.

-- Brings a state into an epoch. Of a state from an earlier epoch only the number of permits in use is kept: their holders write them
-- back, and the missing ones are charged when the epoch has settled.
local function recover(state, epoch, now)
  -- Returns how much of the tightest rule is in use.
  local function used()
    local most = 0
    for _, rule in ipairs(state.rules) do most = max(most, rule.capacity - State.available(state, now, rule)) end
    return most
  end

  if state.epoch ~= epoch.id then
    state.owed = max(state.owed, used())
    state.generation, state.epoch = max(epoch.id, state.generation + 1), epoch.id
    state.called_at, state.lives_until, state.reset_at = min(state.called_at, now), 0, min(state.reset_at, now)
    state.void_from, state.previous_generation, state.rescheduled, state.rescheduled_until = 0, 0, {}, 0
    state.timeline, state.written_back = Timeline.load({ {}, {} }), {}
    state.checkpoints = State.new_checkpoints(state.rules)
  end
  if state.owed > 0 and now >= epoch.settled_at then
    local missing = state.owed - used()
    state.owed = 0
    if missing > 0 then Search.charge_at(state, now, missing) end
  end
end
