-- open.lua: brings a state to the instant of a call: into the epoch, under the declared limits, through resets, pauses and external
-- usage.
--
-- Twin of src/limiter/arithmetic/state.rs (`LimiterState::open`). While replicas run different configurations, all sets of limits that
-- were declared within a lease are in force. A set that only the caller has declared goes at once.

local Open
do
  -- Brings a state to `now` under the caller's rules, through the last reset and the last pause by hand that `epoch` tells of `key`.
  local function state(state, key, epoch, now, text, lease, replica)
    if state.epoch ~= epoch.id then Recovery.recover(state, epoch, now) end
    if Earlier.id then Earlier.adopt(state, key, now) end
    if #epoch.members > Epoch.SIZE and now < epoch.begun + Epoch.AWAY_FOR then ExternalUsage.leave_shares(state, epoch, now) end
    if state.rescheduled_until <= now then state.rescheduled, state.timeline.moving = {}, nil end
    local declared = state.declared
    if #declared == 0 then
      state.declared = { text, now, replica }
    elseif #declared > 3 or declared[1] ~= text then
      Open.declare(state, now, text, lease, replica)
    elseif declared[3] ~= replica then
      declared[3] = 0
    end
    if state.external_usage then ExternalUsage.forget(state, now) end
    declared = state.declared
    local union = declared[1]
    for index = 4, #declared, 3 do union = union .. ";" .. declared[index] end
    if state.union == "" then
      Reschedule.put_in_force(state, union, now)
    elseif union ~= state.union and not State.is_pending(state) then
      Reschedule.start(state, now, now + lease, lease, union)
    end
    if #state.doubts > 0 and now >= epoch.opens and not State.is_pending(state) and Recovery.resolve(state, key, epoch, now) then
      Open.move_up(state, now, lease)
    end
    if #epoch.resets > 0 then Open.follow_reset(state, key, epoch, now, lease) end
    if #epoch.pauses > 0 then Open.follow_pause_by_hand(state, key, epoch, now, lease) end
    if state.pause.paused_until > now then Open.follow_pause(state, now, lease) end
    if state.external_usage then
      Open.follow_external_usage(state, now, lease)
      ExternalUsage.compare(state)
    end
    -- Bookings are seen one by one for this part of a window after their instant; permits given back later are not refunded.
    -- The most past bookings, too.
    local REFUND_PART, REFUND_MAX = 8, 512
    local rules, timeline, checkpoints = state.rules, state.timeline, state.checkpoints
    local beyond_most = 0
    if timeline.size > REFUND_MAX and #checkpoints > 0 then
      beyond_most = Timeline.behind(timeline, now, REFUND_MAX)
    end
    for index = 1, #rules do
      local rule, checkpoint = rules[index], checkpoints[index]
      if checkpoint then
        local till = max(now - floor(rule.window / REFUND_PART), beyond_most)
        checkpoints[index] = rule.algorithm.fold(rule, timeline, checkpoint, till)
      end
    end
    Timeline.prune(timeline, now, rules, checkpoints, max(now, state.void_from))
  end

  -- Reads the states of a queue's limiters, whose keys are the first ones of the call, and brings them to `now`. `callers` are of each, as the caller knows it, its rules as text and the
  -- generation. Returns the states, the caller's own rules of each, whether bookings of any are being moved, and the epoch, which begins
  -- anew where a state is gone.
  local function all(stored, epoch, now, callers, lease, replica, settle, live_key)
    local states, own_rules, is_moving, size = {}, {}, false, #callers / 2
    for index = 1, size do
      states[index] = State.load(KEYS[index], stored[index], now)
      if settle > 0 and not stored[index] then epoch = Epoch.without_state(epoch, live_key, KEYS[index], now, settle) end
    end
    for index = 1, size do
      local own, rules = states[index], callers[2 * index - 1]
      state(own, KEYS[index], epoch, now, rules, lease, replica)
      own_rules[index] = Rule.parse_own(rules, own)
      -- The caller has still to follow the last change. Others have nothing to claim, and must not put the next change off.
      if State.is_pending(own) and callers[2 * index] == own.previous_generation then
        own.rescheduled_until = max(own.rescheduled_until, now + lease)
      end
      is_moving = is_moving or own.timeline.moving ~= nil
    end
    return states, own_rules, is_moving, epoch
  end

  local function rare()
    -- Declares the caller's rules beside those of others, or in place of those that stood alone.
    local function declare(state, now, text, lease, replica)
      local declared = state.declared
      -- A set that stood alone was in force until now, whenever it was declared.
      if #declared == 3 then declared[2] = now end
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
          -- An instant ahead is of another clock.
          keep(rules, min(at, now), by)
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

    local function move_up(state, now, lease)
      Reschedule.start(state, now, now + lease, lease, state.union)
    end

    local function follow_reset(state, key, epoch, now, lease)
      if not State.is_pending(state) and State.reset(state, Epoch.reset_of(epoch, key)) then move_up(state, now, lease) end
    end

    -- Moves the bookings that a pause covers, and all later ones. Their slots cannot be used, so they are void at once. A replica that has
    -- not heard of it uses its own for a lease, also behind a short pause: who comes behind it comes behind these, too.
    local function follow_pause(state, now, lease)
      local till = state.pause.paused_until
      if State.is_pending(state) or till <= now then return end
      local timeline = state.timeline
      local place = Timeline.first_from(timeline, Rule.cell_from(now + 1, state.rules.cell))
      while timeline.permits[place] == 0 do place = place + 1 end
      local first = timeline.at[place]
      if not first or first >= till then return end
      if first < now + lease then Pause.hold(state, now + 2 * lease) end
      Reschedule.start(state, now, now + 1, lease, state.union)
    end

    -- Follows a pause set or lifted by hand; where it was lifted, bookings move up.
    local function follow_pause_by_hand(state, key, epoch, now, lease)
      local at, till, replica = Epoch.pause_of(epoch, key)
      if at == 0 then return end
      local is_lifted = Pause.follow(state, now, at, till, replica) and till <= now
      local last = state.timeline.at[state.timeline.size]
      if is_lifted and last and last > now + lease and not State.is_pending(state) then move_up(state, now, lease) end
    end

    -- Moves the bookings ahead where the external usage differs too much from the one by which they were placed.
    local function follow_external_usage(state, now, lease)
      if State.is_pending(state) or not ExternalUsage.is_unheeded(state) then return end
      local timeline = state.timeline
      Timeline.compact(timeline)
      local last = timeline.at[timeline.size]
      if last and last > now + lease then move_up(state, now, lease) end
      ExternalUsage.heed(state)
    end

    return {
      declare = declare, move_up = move_up, follow_reset = follow_reset, follow_pause = follow_pause, follow_pause_by_hand = follow_pause_by_hand,
      follow_external_usage = follow_external_usage,
    }
  end

  Open = setmetatable({ state = state, all = all, rare = rare }, Lazy)
end
