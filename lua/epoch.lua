-- epoch.lua: the memory of the server that a state belongs to.
--
-- A server can lose its data: flushed, restarted with less or with nothing, replaced by a replica that lagged. An epoch is the time
-- between two such losses. Its key outlives every state of the epoch, so that a missing state has expired as long as the epoch
-- lives; and it names the server's run. A missing epoch, or one of another run, means loss: a new epoch begins. Until it has
-- settled nothing is granted, and replicas write back their grants.
--
-- Stored as { id, run, settled_at, kept_until, resets, pauses }. `id` is the instant of the beginning, or more, so that it never comes
-- twice.
-- `resets` is { key, at, until when a state may hold older bookings, ... }, ascending, where the key is a state's, or what the keys of
-- the states of all partitions begin with. `pauses` is { key, at, paused until (0: lifted), kept until, replica, ... } of pauses by hand.

local Epoch
do
  -- The longest time for which an epoch settles while replicas write back, in multiples of the shortest.
  local SETTLES_MAX = 4

  -- Returns the present epoch. `known_epoch` is the latest epoch that the caller knows; `run` is the server's run as the caller knows
  -- it: empty if unknown, `?` on a Cluster, where the caller does not know the server. `text` is the value of the key, `settle` how
  -- long a new epoch takes to settle; 0: there are no epochs.
  local function open(key, text, now, known_epoch, run, settle)
    if settle == 0 then return { id = 0, settled_at = 0, kept_until = math.huge, resets = {}, pauses = {} } end
    if run == "?" then run = string.match(redis.call("INFO", "server"), "run_id:(%x+)") or "" end
    local row, resets, pauses = Store.read(key, text, 6), nil, nil
    if row then
      local epoch = {
        id = row[1], run = row[2] == "" and run or row[2], settled_at = row[3], kept_until = row[4], resets = row[5], pauses = row[6],
      }
      -- An epoch older than the known one comes from an old copy; a clock before its beginning was set back.
      local is_current = epoch.id >= known_epoch and now >= epoch.settled_at - SETTLES_MAX * settle
      if is_current and (run == "" or run == epoch.run) then return epoch end
      known_epoch = max(known_epoch, epoch.id)
      if (epoch.resets[#epoch.resets - 1] or 0) <= now then resets = epoch.resets end
      if (epoch.pauses[#epoch.pauses - 3] or 0) <= now then pauses = epoch.pauses end
    end
    return Epoch.begin(now, known_epoch, run, settle, resets or {}, pauses or {})
  end

  -- Makes the key of an epoch outlive a state that expires at an instant. Writes it now and then, or each time if `always`.
  local function keep(key, epoch, now, expires, always)
    -- How long the key outlives every state at most; half as long at least.
    local KEPT = 30000000
    local least = max(now, expires, epoch.settled_at) + KEPT / 2
    if epoch.kept_until < least then
      epoch.kept_until = least + KEPT / 2
    elseif not always then
      return
    end
    local row = { epoch.id, epoch.run, epoch.settled_at, epoch.kept_until, epoch.resets, epoch.pauses }
    redis.call("SET", key, cmsgpack.pack(row), "PX", ceil((epoch.kept_until - now) / 1000))
  end

  -- Returns the part of an answer that describes an epoch: the instant of the call, the epoch, until when it settles or 0, the last
  -- reset or 0.
  local function answer(epoch, now)
    local resets = epoch.resets
    return { now, epoch.id, now < epoch.settled_at and epoch.settled_at or 0, resets[#resets - 1] or 0 }
  end

  local function rare()
    -- Returns a new epoch after the one with the number `known`.
    local function begin(now, known, run, settle, resets, pauses)
      return { id = max(now, known + 1), run = run, settled_at = now + settle, kept_until = 0, resets = resets, pauses = pauses }
    end

    -- Returns true if `whole` is the key of a state, or of the limiter that the state is a partition of.
    local function is_part(whole, key)
      return key == whole or key:sub(1, #whole + 1) == whole .. ":"
    end

    -- Returns the last reset of a state; 0: none.
    local function reset_of(epoch, key)
      local at, resets = 0, epoch.resets
      for index = 1, #resets, 3 do
        if is_part(resets[index], key) then at = resets[index + 1] end
      end
      return at
    end

    -- Returns when a state was last paused by hand, until when, and by which replica; zeros: never. A pause that was lifted ends at 0.
    local function pause_of(epoch, key)
      local at, till, replica, pauses = 0, 0, 0, epoch.pauses
      for index = 1, #pauses, 5 do
        if is_part(pauses[index], key) then at, till, replica = pauses[index + 1], pauses[index + 2], pauses[index + 4] end
      end
      return at, till, replica
    end

    return { begin = begin, is_part = is_part, reset_of = reset_of, pause_of = pause_of }
  end

  Epoch = setmetatable({ SETTLES_MAX = SETTLES_MAX, open = open, keep = keep, answer = answer, rare = rare }, Lazy)
end
