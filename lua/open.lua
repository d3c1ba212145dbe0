-- open.lua: brings a state to the instant of a call: under the limits that are declared, through resets, pauses and what others use.
--
-- Twin of src/limiter/arithmetic/state.rs (`LimiterState::open`). While replicas run different configurations, all sets of limits that
-- were declared within a lease are in force. A set that only the caller has declared goes at once.

local Open
do
  -- Declares the caller's rules.
  local function declare(state, now, text, lease, replica)
    local declared = state.declared
    if #declared == 3 then
      if declared[1] == text then
        if declared[3] ~= replica then declared[3] = 0 end
        return
      end
      -- A set that stood alone was in force until now, whenever it was declared.
      declared[2] = now
    end
    local is_known, kept = false, {}
    local function keep(rules, at, by)
      local size = #kept
      kept[size + 1], kept[size + 2], kept[size + 3] = rules, at, by
    end
    for index = 1, #declared, 3 do
      local rules, at, by = declared[index], declared[index + 1], declared[index + 2]
      if rules == text then
        is_known = true
        keep(rules, now, by == replica and by or 0)
      elseif by ~= replica and at + lease > now then
        keep(rules, at, by)
      end
    end
    if not is_known then keep(text, now, replica) end
    -- The most sets of limits in force; a further one replaces the one that was declared longest ago.
    local DECLARED_MAX = 4
    if #kept > 3 * DECLARED_MAX then
      local oldest = 1
      for index = 4, #kept, 3 do
        if kept[index + 1] < kept[oldest + 1] then oldest = index end
      end
      for _ = 1, 3 do table.remove(kept, oldest) end
    end
    state.declared = kept
  end

  local function union_of(declared)
    local union = declared[1]
    for index = 4, #declared, 3 do union = union .. ";" .. declared[index] end
    return union
  end

  local function move_up(state, now, lease)
    Reschedule.start(state, now, now + lease, lease, state.union)
  end

  -- Moves the bookings that a pause covers, and all later ones. Their slots cannot be used, so they are void at once.
  local function follow_pause(state, now, lease)
    local till = state.pause.paused_until
    if State.is_pending(state) or till <= now then return end
    local timeline = state.timeline
    local first = timeline.at[Timeline.first_from(timeline, Rule.cell_from(now + 1, state.rules.cell))]
    if first and first < till then Reschedule.start(state, now, now + 1, lease, state.union) end
  end

  -- Moves bookings ahead that differ too much from where they stand beside what others use.
  local function follow_external_usage(state, now, lease)
    if not state.external_usage or State.is_pending(state) or not ExternalUsage.is_unheeded(state) then return end
    Timeline.compact(state.timeline)
    local last = Timeline.last(state.timeline)
    if last and last > now + lease then move_up(state, now, lease) end
    ExternalUsage.heed(state)
  end

  -- Follows a pause set or lifted by hand; where it was lifted, bookings move up.
  local function follow_pause_by_hand(state, now, lease, at, till, replica)
    local is_followed = Pause.follow(state, now, at, till, replica)
    follow_pause(state, now, lease)
    local last = Timeline.last(state.timeline)
    if is_followed and till <= now and last and last > now + lease and not State.is_pending(state) then
      move_up(state, now, lease)
    end
  end

  local function prune(state, now)
    -- Bookings are seen one by one for this part of a window after their instant; permits given back later are not refunded.
    local REFUND_PART = 8
    local rules, timeline, seen_for = state.rules, state.timeline, {}
    for index = 1, #rules do
      local rule, checkpoint = rules[index], state.checkpoints[index]
      seen_for[index] = ExternalUsage.compared_for(state, index)
      if checkpoint then
        state.checkpoints[index] = rule.algorithm.fold(rule, timeline, checkpoint, now - floor(rule.window / REFUND_PART))
      end
    end
    Timeline.prune(timeline, now, rules, seen_for)
  end

  -- Brings a state to `now` under the caller's rules, through the last reset and the last pause by hand that `epoch` tells of `key`.
  local function state(state, key, epoch, now, text, lease, replica)
    if state.rescheduled_until <= now then state.rescheduled = {} end
    declare(state, now, text, lease, replica)
    ExternalUsage.forget(state, now)
    local union = union_of(state.declared)
    if state.union == "" then
      Reschedule.put_in_force(state, union)
    elseif union ~= state.union and not State.is_pending(state) then
      Reschedule.start(state, now, now + lease, lease, union)
    end
    if not State.is_pending(state) and State.reset(state, Epoch.reset_of(epoch, key)) then move_up(state, now, lease) end
    local at, till, by = Epoch.pause_of(epoch, key)
    if at > 0 then follow_pause_by_hand(state, now, lease, at, till, by) else follow_pause(state, now, lease) end
    follow_external_usage(state, now, lease)
    prune(state, now)
  end

  Open = { state = state, follow_pause = follow_pause, follow_external_usage = follow_external_usage }
end
