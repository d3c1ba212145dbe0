-- state.lua: the state of one limiter, or of one of its partitions.
--
-- Twin of src/limiter/arithmetic/state.rs. Stored as one MessagePack array of the fields below. Beside them a state has `rules`, all
-- rules in force, and `row`, the array from which it was read and to which it is written.

local State
do
  local FIELDS = {
    "generation", "void_from", "previous_generation", -- the last change of the limits: reschedule.lua
    "rescheduled_cell", "rescheduled_until", "rescheduled",
    "declared", -- { text of rules, when they were declared last, by the only replica that did or 0 for several, ... }
    "union", -- the text of the rules in force
    "timeline", -- timeline.lua
    "checkpoints", -- what rules remember of bookings that are not seen one by one any more; stored in one row
    "epoch", -- the epoch of the server's memory that the state belongs to: epoch.lua
    "owed", -- permits known to be in use that a replica has yet to write back: recovery.lua
    "written_back", -- { replica, the number of its last write of each kind, ... }
    "called_at", -- the instant of the last call
    "silent_from", "silent_until", -- the last long time without a call
    "created_at",
    "lives_until", -- until when the state exists, as callers were answered
    "reset_at", -- the last reset that was followed
    "pause", -- pause.lua
    "external_usage", -- external_usage.lua
  }

  -- Returns the checkpoint of a rule that nothing was booked under; nil for an algorithm that has none.
  local function new_checkpoint(rule)
    local size = rule.algorithm.CHECKPOINT_SIZE
    if size == 0 then return nil end
    local checkpoint = {}
    for index = 1, size do checkpoint[index] = 0 end
    return checkpoint
  end

  local function new_checkpoints(rules)
    local checkpoints = {}
    for index = 1, #rules do checkpoints[index] = new_checkpoint(rules[index]) end
    return checkpoints
  end

  local function load_checkpoints(row, rules)
    local checkpoints, place = {}, 0
    for index = 1, #rules do
      local checkpoint = new_checkpoint(rules[index])
      for part = 1, checkpoint and #checkpoint or 0 do
        place = place + 1
        checkpoint[part] = row[place]
      end
      checkpoints[index] = checkpoint
    end
    return checkpoints
  end

  local function pack_checkpoints(checkpoints, rules)
    local row = {}
    for index = 1, #rules do
      local checkpoint = checkpoints[index]
      for part = 1, checkpoint and #checkpoint or 0 do row[#row + 1] = checkpoint[part] end
    end
    return row
  end

  -- Returns the void permits that are not claimed yet.
  local function pack_rescheduled(rescheduled)
    local row = {}
    for index = 1, #rescheduled, 3 do
      if rescheduled[index + 2] > 0 then
        local size = #row
        row[size + 1], row[size + 2], row[size + 3] = rescheduled[index], rescheduled[index + 1], rescheduled[index + 2]
      end
    end
    return row
  end

  -- Turns a state whose fields all hold 0 into a new one.
  local function begin(state, now)
    state.rescheduled, state.declared, state.written_back, state.checkpoints = {}, {}, {}, {}
    state.rules, state.union, state.rescheduled_cell, state.created_at = Rule.parse_all(""), "", 1, now
    state.timeline, state.pause, state.external_usage = Timeline.new(), Pause.NONE, nil
    return state
  end

  -- Returns the state of a key whose value is `text`; a new one if it holds nothing.
  local function load(key, text, now)
    local row = Store.read(key, text, #FIELDS)
    -- A table with all fields from the start: one that grows with each costs more.
    local state = {
      generation = 0, void_from = 0, previous_generation = 0, rescheduled_cell = 0, rescheduled_until = 0, rescheduled = 0,
      declared = 0, union = 0, timeline = 0, checkpoints = 0, epoch = 0, owed = 0, written_back = 0, called_at = 0, silent_from = 0,
      silent_until = 0, created_at = 0, lives_until = 0, reset_at = 0, pause = 0, external_usage = 0, rules = 0, row = row or {},
    }
    if not row then return begin(state, now) end
    Store.from_row(state, FIELDS, row)
    state.rules = Rule.parse_all(state.union)
    state.timeline = Timeline.load(state.timeline)
    state.checkpoints = load_checkpoints(state.checkpoints, state.rules)
    state.pause = Pause.load(state.pause)
    state.external_usage = ExternalUsage.load(state.external_usage)
    return state
  end

  -- Returns the stored form of a state, which cannot be used any more.
  local function pack(state)
    state.rescheduled = pack_rescheduled(state.rescheduled)
    state.timeline = Timeline.pack(state.timeline)
    state.checkpoints = pack_checkpoints(state.checkpoints, state.rules)
    state.pause = Pause.pack(state.pause)
    state.external_usage = ExternalUsage.pack(state.external_usage)
    return cmsgpack.pack(Store.to_row(state, FIELDS, state.row))
  end

  -- Returns when the state matters no more.
  local function expires(state)
    Timeline.compact(state.timeline)
    local at = Pause.expires(state.pause)
    for index, rule in ipairs(state.rules) do
      at = max(at, rule.algorithm.expires(rule, state.timeline, state.checkpoints[index]))
    end
    return at
  end

  -- Writes a state, which exists for no shorter than callers were answered before. Returns until when it is sure to exist.
  local function keep(key, was, state, now, expires_at)
    state.lives_until = max(state.lives_until, expires_at)
    Store.write(key, was, pack(state), now, state.lives_until)
    return state.lives_until
  end

  -- Returns the permits that could be used at an instant under one of the caller's rules.
  local function available(state, now, rule)
    local index = Rule.position(state.rules, rule)
    local external = index and ExternalUsage.external(state, index) or 0
    return rule.algorithm.available(rule, state.timeline, now, state.checkpoints[index], external)
  end

  -- Returns the end of the pause that a state is in; 0 if it is in none.
  local function paused_until(state, now)
    local till = state.pause.paused_until
    return till > now and till or 0
  end

  -- Returns true while replicas may still have to follow an earlier change (see reschedule.lua).
  local function is_pending(state)
    return #state.rescheduled > 0
  end

  -- Follows a reset: forgets what was used until then. Returns whether it had not been followed yet.
  local function reset(state, reset_at)
    if reset_at <= state.reset_at then return false end
    state.reset_at = reset_at
    Timeline.keep_from(state.timeline, Timeline.first_from(state.timeline, reset_at + 1))
    state.checkpoints = new_checkpoints(state.rules)
    return true
  end

  State = {
    new_checkpoint = new_checkpoint, new_checkpoints = new_checkpoints, load = load, expires = expires, keep = keep,
    available = available, paused_until = paused_until, is_pending = is_pending, reset = reset,
  }
end
