-- state.lua: the state of one limiter, or of one of its partitions.
--
-- Twin of src/limiter/arithmetic/state.rs. Stored as one MessagePack array of the fields below, in their order.

local State
do
  local SIZE = 17

  -- The kind of a doubt before whose instant nothing is booked: recovery.lua.
  local CLOSED = 2

  -- Follows the doubts of that kind.
  local function close(state)
    local doubts, closed_until = state.doubts, 0
    for index = 1, #doubts, 3 do
      if doubts[index] == CLOSED then closed_until = max(closed_until, doubts[index + 1]) end
    end
    state.closed_until = closed_until
  end

  -- Returns the state of a key whose value is `text`; a new one if it holds nothing.
  local function load(key, text, now)
    local row = Store.read(key, text, SIZE)
      or { 0, 0, 0, 1, 0, {}, {}, "", { {}, {} }, {}, 0, {}, {}, 0, 0, 0, 0 }
    local rules, stored, checkpoints, place, timeline = Rule.parse_all(row[8]), row[10], {}, 0, Timeline.load(row[9])
    for index = 1, #rules do
      local size = rules[index].algorithm.CHECKPOINT_SIZE
      if size > 0 then
        checkpoints[index] = { unpack(stored, place + 1, place + size) }
        place = place + size
      end
    end
    timeline.keeps_empty = place == 0
    if timeline.pages then work.done = work.done + Pages.work(timeline.pages) end
    local state = {
      -- The last change of the limits: reschedule.lua.
      generation = row[1], void_from = row[2], previous_generation = row[3],
      rescheduled_cell = row[4], rescheduled_until = row[5], rescheduled = type(row[6][1]) == "number" and { row[6] } or row[6],
      -- { text of rules, when they were declared last, by the only replica that did or 0 for several, ... }
      declared = row[7],
      -- The rules in force, and their text.
      rules = rules, union = row[8],
      timeline = timeline,
      -- The rules' memory of bookings that are not seen one by one any more; stored in one row.
      checkpoints = checkpoints,
      -- The epoch of the server's memory that the state belongs to: epoch.lua.
      epoch = row[11],
      -- Permits that may have been granted and are not known: recovery.lua.
      doubts = row[12],
      -- { replica, the number of its last write of each kind, ... }
      written_back = row[13],
      -- Until when the state exists at least, as the server notes it of all states: epoch.lua.
      lives_until = row[14],
      -- The last reset that was followed.
      reset_at = row[15],
      pause = row[16] == 0 and Pause.NONE or Pause.load(row[16]),
      external_usage = row[17] ~= 0 and ExternalUsage.load(row[17]) or nil,
      -- Nothing is booked before: the latest instant of the doubts that say so.
      closed_until = 0,
    }
    if state.doubts[1] then close(state) end
    return state
  end

  -- Returns the row to be stored of a state, which cannot be used any more.
  local function pack(state)
    local rules, checkpoints, row, pause, usages = state.rules, state.checkpoints, {}, state.pause, state.external_usage
    if state.rescheduled[1] then State.drop_claimed(state.rescheduled) end
    for index = 1, #rules do
      local checkpoint = checkpoints[index]
      for part = 1, checkpoint and #checkpoint or 0 do row[#row + 1] = checkpoint[part] end
    end
    return {
      state.generation, state.void_from, state.previous_generation, state.rescheduled_cell, state.rescheduled_until,
      state.rescheduled, state.declared, state.union,
      Timeline.pack(state.timeline), row, state.epoch, state.doubts, state.written_back, state.lives_until, state.reset_at,
      pause == Pause.NONE and 0 or Pause.pack(pause),
      usages and ExternalUsage.pack(usages) or 0,
    }
  end

  -- Returns when the state matters no more, and the most permits that a rule which spaces them lacks at `now`, or behind the last booking if
  -- that is later.
  local function expires(state, now)
    local rules, timeline, checkpoints, pause = state.rules, state.timeline, state.checkpoints, state.pause
    Timeline.compact(timeline)
    -- A pause matters for the length of the next one, too.
    local at = max(pause.paced_until, pause.paused_until + 2 * pause.length)
    if timeline.moving then at = max(at, state.rescheduled_until) end
    for index, usage in ipairs(state.external_usage or {}) do
      if usage.since > 0 then at = max(at, max(usage.since, pause.paused_until) + 2 * rules[index].window) end
    end
    local most = 0
    for index = 1, #rules do
      local rule = rules[index]
      local expires_at, lacking = rule.algorithm.expires(rule, timeline, checkpoints[index], rules, now)
      at = max(at, expires_at)
      if rule.is_spaced then most = max(most, lacking) end
    end
    return at, most
  end

  -- Writes a state, which exists for no shorter than was noted before. Notes a longer life with a margin, so that few calls do, and that
  -- bookings were moved. Returns until when it is sure to exist.
  local function keep(key, was, state, now, expires_at, live_key, moved_key, epoch)
    if state.has_moved and epoch.id > 0 then Epoch.note_moved(moved_key, key, now) end
    if expires_at > now and expires_at > state.lives_until then
      state.lives_until = expires_at + floor((expires_at - now) / 4)
      if epoch.id > 0 then Epoch.note_live(live_key, key, epoch, now, state.lives_until) end
    elseif was and state.lives_until <= now then
      redis.call("ZREM", live_key, key)
    end
    local row = pack(state)
    Store.write(key, was, cmsgpack.pack(row), now, state.lives_until)
    if Earlier.id then Earlier.keep(key, row, now, state.lives_until) end
    return state.lives_until
  end

  -- Returns the permits that could be used at an instant under one of the caller's rules.
  local function available(state, now, rule)
    local index = Rule.position(state.rules, rule)
    local external = index and state.external_usage and ExternalUsage.external(state, index) or 0
    return rule.algorithm.available(rule, state.timeline, now, state.checkpoints[index], external)
  end

  -- Returns the end of the pause that a state is in; 0 if it is in none.
  local function paused_until(state, now)
    local till = state.pause.paused_until
    return till > now and till or 0
  end

  -- Returns true while replicas may still have to follow an earlier change (see reschedule.lua).
  local function is_pending(state)
    return #state.rescheduled > 0 or state.timeline.moving ~= nil
  end

  -- Writes the states of a queue's limiters, whose keys are the first ones of the call. Returns what the caller is told of each, the last booked instant, and until when one of them is sure
  -- to exist.
  local function keep_all(states, own_rules, stored, now, live_key, moved_key, epoch)
    local rows, last_booked, lives_until = {}, 0, now
    for index = 1, #states do
      local state, rules, available_now = states[index], own_rules[index], {}
      for place = 1, #rules do available_now[place] = available(state, now, rules[place]) end
      local expires_at, lacking = expires(state, now)
      last_booked = max(last_booked, state.timeline.at[state.timeline.size] or 0)
      if now < epoch.opens and #state.written_back > 0 then
        expires_at = max(expires_at, epoch.opens + Rule.longest_window(state.rules))
      end
      lives_until = max(lives_until, keep(KEYS[index], stored[index], state, now, expires_at, live_key, moved_key, epoch))
      -- Several sets of limits are in force only as long as each is declared again and again.
      local is_disputed = #state.declared > 3 and 1 or 0
      rows[index] = { state.generation, state.void_from, state.previous_generation, available_now, paused_until(state, now), is_disputed, lacking }
    end
    return rows, last_booked, lives_until
  end

  local function rare()
    -- Returns the checkpoint of a rule that nothing was booked under; nil for an algorithm that has none. Where the bookings before
    -- `known_from` are not known, the bucket was empty as late as it can have been to be full again then. A rule that spaces permits is
    -- free then: what it lacks is what was granted last.
    -- It was full when the state was reset behind that.
    local function new_checkpoint(rule, known_from, reset_at)
      local size = rule.algorithm.CHECKPOINT_SIZE
      if size == 0 then return nil end
      if known_from and rule.is_spaced then return rule.algorithm.lacking(rule, known_from - 1, 0) end
      if known_from then
        -- Not a part of a microsecond later: what is not known is charged as far as the bucket would grant it.
        local span, rest = Rule.span_exact(rule, rule.capacity)
        local since = known_from - span - (rest > 0 and 1 or 0)
        if not reset_at or reset_at < since then return rule.algorithm.lacking(rule, max(since, 0), rule.capacity) end
      end
      local checkpoint = {}
      for index = 1, size do checkpoint[index] = 0 end
      return checkpoint
    end

    local function new_checkpoints(rules, known_from, reset_at)
      local checkpoints = {}
      for index = 1, #rules do checkpoints[index] = new_checkpoint(rules[index], known_from, reset_at) end
      return checkpoints
    end

    -- Removes the first pages of void permits that are all claimed: a call would look at thousands of rows otherwise.
    local function drop_claimed(pages)
      while pages[1] do
        local page = pages[1]
        for index = 3, #page, 3 do
          if page[index] > 0 then return end
        end
        table.remove(pages, 1)
      end
    end

    -- Follows a reset: forgets what was used until then. Returns whether it had not been followed yet.
    local function reset(state, reset_at)
      if reset_at <= state.reset_at then return false end
      state.reset_at = reset_at
      Timeline.keep_from(state.timeline, Timeline.first_from(state.timeline, reset_at + 1))
      state.timeline.full = {}
      state.checkpoints = new_checkpoints(state.rules, state.known_from, reset_at)
      -- The charge for a doubt is gone. To take it back would take what was booked since in its cell.
      local doubts, kept = state.doubts, {}
      for index = 1, #doubts, 3 do
        local is_lost, at, permits = unpack(doubts, index, index + 2)
        local size = #kept
        if at == 0 or at > reset_at then kept[size + 1], kept[size + 2], kept[size + 3] = is_lost, at, permits end
      end
      state.doubts = kept
      return true
    end

    return {
      new_checkpoint = new_checkpoint, new_checkpoints = new_checkpoints, drop_claimed = drop_claimed, reset = reset,
    }
  end

  State = setmetatable({
    CLOSED = CLOSED, load = load, close = close, pack = pack, expires = expires, keep = keep, keep_all = keep_all, available = available, paused_until = paused_until, is_pending = is_pending,
    rare = rare,
  }, Lazy)
end
