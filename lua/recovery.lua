-- recovery.lua: brings a state through a doubt of the server's memory, or of what was granted without it.
--
-- A state has `doubts`: { whether memory was lost (1) or the server was away (0), the instant of the charge or 0, its permits, ... }.
-- When the epoch is open, a doubt is either resolved, because all members have reported, or charged: with all that they can have been
-- granted and not reported, at the opening. No earlier use of theirs is seen for longer. A late report resolves it still.

-- The permits that silent members are taken to have granted without the server, from when they last heard it to the opening: at the pace
-- of the limit, and this time's worth of it at once. A member that has used up the share of a long window at once, and has died before it
-- could report that, is not reckoned with: else the crash of a replica would close a limit a day for a day.
local function granted_away(state, epoch)
  local AT_ONCE = 5000000
  local most, away = 0, epoch.opens - epoch.silent_from + AT_ONCE
  for _, rule in ipairs(state.rules) do
    most = max(most, min(rule.capacity, ceil(rule.rate * away / rule.window) + #epoch.members / Epoch.SIZE))
  end
  return most
end

-- Returns the most permits that any rule would grant at an instant. To charge more would close a limit for longer than if it was used up.
local function grantable(state, at)
  local most = 0
  for index, rule in ipairs(state.rules) do
    most = max(most, rule.algorithm.available(rule, state.timeline, at, state.checkpoints[index], 0))
  end
  return most
end

-- Drops the doubts that are resolved, and charges the others. The epoch is open, and the rules are in force. Returns whether a charge
-- was taken back.
local function resolve(state, epoch, now)
  local doubts, kept, is_lighter = state.doubts, {}, false
  for index = 1, #doubts, 3 do
    local is_lost, at, permits = doubts[index], doubts[index + 1], doubts[index + 2]
    local is_known
    if is_lost == 1 then is_known = Epoch.knows_all(epoch, now) else is_known = Epoch.knows_local(epoch) end
    if is_known then
      if at > 0 then
        Timeline.uncharge(state.timeline, state.rules, at, permits)
        is_lighter = true
      end
    elseif at == 0 then
      at, permits = epoch.opens, granted_away(state, epoch)
      if is_lost == 1 then
        for _, rule in ipairs(state.rules) do permits = max(permits, rule.capacity) end
      end
      permits = min(permits, grantable(state, at))
      Search.charge_at(state, at, permits)
    end
    local longest = Rule.longest_window(state.rules)
    if not is_known and now < at + longest then
      kept[#kept + 1], kept[#kept + 2], kept[#kept + 3] = is_lost, at, permits
    end
  end
  state.doubts = kept
  return is_lighter
end

-- Brings a state of an earlier epoch into this one. Slots ahead are void: their holders have lost them.
local function recover(state, epoch, now)
  local doubts = state.doubts
  local function doubt(is_lost)
    -- The most doubts that can still be resolved; what was charged for the others stays charged.
    local DOUBTS_MAX = 8
    if #doubts >= 3 * DOUBTS_MAX then doubts = { unpack(doubts, 4) } end
    local size = #doubts
    doubts[size + 1], doubts[size + 2], doubts[size + 3] = is_lost, 0, 0
  end
  if state.epoch < epoch.memory then
    state.timeline, state.written_back = Timeline.load({ {}, {} }), {}
    -- A new state has no rules yet: `known_from` is for those that are put in force.
    state.checkpoints, state.known_from, doubts = State.new_checkpoints(state.rules, epoch.opens), epoch.opens, {}
    doubt(1)
  else
    Timeline.split_off(state.timeline, epoch.opens + 1)
  end
  if epoch.id ~= epoch.memory then doubt(0) end
  state.doubts = doubts
  state.generation, state.epoch = max(epoch.id, state.generation + 1), epoch.id
  state.lives_until, state.reset_at = 0, min(state.reset_at, now)
  if state.pause ~= Pause.NONE then Pause.rebase(state, now) end
  state.void_from, state.previous_generation, state.rescheduled, state.rescheduled_until = 0, 0, {}, 0
end
