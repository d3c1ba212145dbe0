-- recovery.lua: brings a state through a doubt of the server's memory, or of what was granted without it.
--
-- A state has `doubts`: { whether memory was lost (1) or the server was away (0), the instant of the charge or 0, its permits, ... }. One
-- that is `State.CLOSED` in place of these charges nothing: nothing is booked before its instant.
-- When the epoch is open, a doubt is either resolved, because all members have reported, or charged: with all that they can have been
-- granted and not reported, at the opening. No earlier use of theirs is seen for longer. A late report resolves it still. What others
-- keep copies of (copies.lua) is charged where it was granted, so that only the rest is charged at the opening.

local Recovery = setmetatable({ rare = function()
  -- The permits that members who have not reported are taken to have granted without the server, from when they last heard it to the
  -- opening: at the pace of each rule, some time's worth of it at once, and one more each, because they grant whole permits; the most of these,
  -- though all rules held for them, because a shorter one may have been used up while a longer one was hardly used. Most of them have died when
  -- they fell silent, and were granted nothing. So one is not reckoned with that has used up the share of a long window at once, or has been cut
  -- off for longer than `CUT_OFF_MAX`, and has died before it could report that: else the crash of the only replica would close a limit a day
  -- for a day, or a night would use up half of it.
  -- The rules that are `SOON` whole again are not among these where another one is not: a second's permits may be those of a day.
  -- Returns the longest time for which these may be used up, too: until it is over nothing is booked.
  local function granted_away(state, epoch)
    local AT_ONCE, SOON, CUT_OFF_MAX = 5000000, Rule.SOON, 60000000
    local most, of_short, whole_after, silent = 0, 0, 0, Epoch.unreported(epoch)
    local away = min(epoch.opens - epoch.silent_from, CUT_OFF_MAX) + AT_ONCE
    for _, rule in ipairs(state.rules) do
      local granted = min(rule.lacking_max, floor(rule.rate * away / rule.window) + silent)
      local span = Rule.span_exact(rule, rule.lacking_max)
      if span > SOON then
        most = max(most, granted)
      else
        of_short, whole_after = max(of_short, granted), max(whole_after, span + 1)
      end
    end
    if most == 0 then return of_short, 0 end
    return most, of_short > most and whole_after or 0
  end

  -- Returns the most permits that any rule would grant at an instant, to one request or to several. To charge more would close a limit for
  -- longer than if it was used up.
  local function grantable(state, at)
    local most = 0
    for index, rule in ipairs(state.rules) do
      local left = rule.algorithm.available(rule, state.timeline, at, state.checkpoints[index], 0)
      if left > 0 then most = max(most, left + rule.lacking_max - rule.capacity) end
    end
    return most
  end

  -- Lets no bucket lack more at an instant than it ever can: what was charged there is what a limit of an hour beside it may have granted in a
  -- minute.
  local function cap_buckets(state, at)
    for place, checkpoint in pairs(state.checkpoints) do
      local rule = state.rules[place]
      local algorithm = rule.algorithm
      if checkpoint[#checkpoint] < at then
        local most = algorithm.lacking(rule, at, rule.lacking_max)
        if algorithm.is_emptier(algorithm.fold(rule, state.timeline, checkpoint, at), most) then state.checkpoints[place] = most end
      end
    end
  end

  -- Takes a booking into the checkpoints that hold its instant. One that is not in its order counts as if nothing of it had flowed out
  -- since; but no bucket ever lacked more than all that it holds. A rule that spaces permits was free for each booking: the one that it is
  -- free for last counts. A booking may be all of a long time, where a limit of a day beside the rule counts in such cells.
  local function take_late(state, at, permits)
    for place, checkpoint in pairs(state.checkpoints) do
      local rule, folded = state.rules[place], checkpoint[#checkpoint]
      if rule.is_spaced then
        local most = min(permits, rule.lacking_max)
        local behind = rule.algorithm.take_late(rule, rule.algorithm.lacking(rule, at, 0), at, most)
        behind[#behind] = folded
        if at <= folded and rule.algorithm.is_emptier(behind, checkpoint) then state.checkpoints[place] = behind end
      else
        local emptiest = rule.algorithm.lacking(rule, folded, rule.capacity)
        if not rule.algorithm.is_emptier(checkpoint, emptiest) then
          local behind = rule.algorithm.take_late(rule, checkpoint, at, permits)
          state.checkpoints[place] = rule.algorithm.is_emptier(behind, emptiest) and emptiest or behind
        end
      end
    end
  end

  -- Charges bookings, ascending instants and permits by turns: two ascending rows become one. An instant is the latest one that it may
  -- have been: no later window is begun with less than was used in it.
  local function charge_late(state, bookings)
    local timeline, in_force, is_one = state.timeline, state.rules, Rule.is_one
    Timeline.drop_stale(timeline)
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
        if known_permits[known] > 0 then put(known_entries[known], known_permits[known]) end
        known = known + 1
      end
    end
    for index = 1, #bookings, 2 do
      local at, count = bookings[index], bookings[index + 1]
      put_known(at)
      -- Bookings from before a reset do not count any more.
      if at > state.reset_at and count > 0 then
        put(at, count)
        take_late(state, at, count)
      end
    end
    put_known(math.huge)
    timeline.at, timeline.permits, timeline.size, timeline.empty, timeline.pages = entries, permits, size, 0, nil
  end

  -- Returns the place of a number among those of write-backs; nil if there is none. The charge of a copy is noted under the number of its
  -- replica, below zero.
  local function place_of(state, number)
    local written = state.written_back
    for index = 1, #written, 3 do
      if written[index] == number then return index end
    end
  end

  -- Charges what the others' copies show of members that have ended, or have not reported. Each copy is charged once; a replica that has
  -- reported itself has told all. All copies become one row first, so that the state is passed once.
  local function charge_copies(state, key, epoch, now)
    local members, written, instants, sums = epoch.members, state.written_back, {}, {}
    for index = 1, #members, Epoch.SIZE do
      local replica = members[index]
      local may_matter = members[index + 2] > now and (members[index + 1] == 0 or members[index + 3] < epoch.memory)
      local own = place_of(state, replica)
      local has_reported = own and written[own + 1] >= epoch.memory
      if may_matter and not has_reported and not place_of(state, -replica) then
        local bookings = Copies.bookings(epoch, replica, key)
        if bookings then
          for place = 1, #bookings, 2 do
            local at = bookings[place]
            if not sums[at] then instants[#instants + 1] = at end
            sums[at] = (sums[at] or 0) + bookings[place + 1]
          end
          local size = #written
          written[size + 1], written[size + 2], written[size + 3] = -replica, epoch.memory, 0
        end
      end
    end
    if not instants[1] then return end
    table.sort(instants)
    local bookings = {}
    for place, at in ipairs(instants) do bookings[2 * place - 1], bookings[2 * place] = at, sums[at] end
    charge_late(state, bookings)
  end

  -- Returns what is charged already of a replica's own report, permits by instants: the copy that was charged.
  local function charged_before(state, key, epoch, replica)
    local bookings, charged = place_of(state, -replica) and Copies.bookings(epoch, replica, key) or {}, {}
    for index = 1, #bookings, 2 do charged[bookings[index]] = bookings[index + 1] end
    return charged
  end

  -- Drops the doubts that are resolved, and charges the others. The epoch is open, and the rules are in force. Returns whether a charge
  -- was taken back.
  local function resolve(state, key, epoch, now)
    local doubts, kept, is_lighter = state.doubts, {}, false
    for index = 1, #doubts, 3 do
      local is_lost, at, permits = doubts[index], doubts[index + 1], doubts[index + 2]
      local is_known, whole_after = nil, 0
      if is_lost == 1 then is_known = Epoch.knows_all(epoch, now) else is_known = Epoch.unreported(epoch) == 0 end
      -- A doubt that is charged covers what a late copy shows.
      if is_lost == 1 and (is_known or at == 0) then charge_copies(state, key, epoch, now) end
      if is_known then
        if at > 0 then
          Timeline.uncharge(state.timeline, state.rules, at, permits, now)
          is_lighter = true
        end
      elseif at == 0 then
        at = epoch.opens
        permits, whole_after = granted_away(state, epoch)
        if is_lost == 1 then
          for _, rule in ipairs(state.rules) do permits = max(permits, rule.lacking_max) end
        end
        permits = min(permits, grantable(state, at))
        Search.charge_at(state, at, permits)
        cap_buckets(state, at)
      end
      local matters_for = is_lost == State.CLOSED and 0 or Rule.longest_window(state.rules)
      if not is_known and now < at + matters_for then
        kept[#kept + 1], kept[#kept + 2], kept[#kept + 3] = is_lost, at, permits
      end
      if whole_after > 0 and now < at + whole_after then
        kept[#kept + 1], kept[#kept + 2], kept[#kept + 3] = State.CLOSED, at + whole_after, 0
      end
    end
    state.doubts = kept
    State.close(state)
    return is_lighter
  end

  -- Brings a state of an earlier epoch into this one. Slots ahead are void: their holders have lost them. So are those that came when
  -- every lease was over. They must go: a state is charged with what is not known as far as it would grant, and a booking that nobody
  -- used would hide as much of that, until it leaves its window.
  -- A booking that stays is where it was: where memory is kept, a call that was on its way when the epoch began gives it back still.
  local function recover(state, epoch, now)
    local doubts, previous, void_from = state.doubts, 0, 0
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
      state.reset_at = 0
    else
      void_from = epoch.opens + 1
      if epoch.unused_from > 0 then void_from = min(void_from, epoch.unused_from) end
      -- An entry is kept at the latest instant of its cell: what was used in the cell of that instant stands there, with what was not.
      previous, void_from = state.generation, Rule.cell_from(void_from, state.rules.cell)
      Timeline.split_off(state.timeline, void_from)
    end
    if epoch.id ~= epoch.memory then doubt(0) end
    state.doubts = doubts
    state.generation, state.epoch = max(epoch.id, state.generation + 1), epoch.id
    state.lives_until, state.reset_at = 0, min(state.reset_at, now)
    if state.pause ~= Pause.NONE then Pause.rebase(state, now) end
    state.void_from, state.previous_generation, state.rescheduled, state.rescheduled_until = void_from, previous, {}, 0
    state.timeline.moving = nil
  end

  return { resolve = resolve, recover = recover, charge_late = charge_late, charged_before = charged_before }
end }, Lazy)
