-- epoch.lua: the memory of the server that a state belongs to, and the replicas that share it.
--
-- An epoch is the time between two doubts. A server that was flushed, restarted or replaced, whose clock was set back, or that misses
-- a state, has lost its memory. A server that no replica was sure to hear for a while may have been away, and permits were granted
-- without it. Either begins an epoch: every slot of an earlier one is void, nothing is granted until the epoch opens, by when each
-- replica has heard of it, and replicas report what the server cannot know. What nobody has reported is charged: recovery.lua.
--
-- Stored as { id, run, begun, kept_until, resets, pauses, memory, silent_from, version, members, opened, unused_from }:
--   id           the instant of the beginning, or more, so that it never comes twice
--   kept_until   until when the key lives: longer than every state of the server's memory, whichever epoch it was written in
--   opened       when it opens; 0 while no caller has shown that it got an answer of the epoch: until then the server may be away
--   memory       the first epoch of the server's present memory
--   silent_from  when a replica last heard the server before the epoch began
--   unused_from  bookings of an earlier epoch from this instant on were not used by anybody; 0: that is not known
--   version      grows when the counted members change
--   members      { replica, when it last heard the server or 0 if it has left, until when its permits may matter, the memory to which
--                it has reported all it was granted, the epoch to which it has reported what it granted without the server, the
--                version that it knows, whether it is counted, ... }
-- The set of the states that are there has a member for itself, as long as it is whole: a server that misses that has lost it, and cannot say
-- which states it had. So has the set of the states whose bookings were moved: it tells since when it is whole.
-- `resets` is { key, at, until when a state may hold older bookings, ... }, ascending, where the key is a state's, or what the keys of
-- the states of all partitions begin with. `pauses` is { key, at, paused until (0: lifted), kept until, replica, ... } of pauses by hand.

local Epoch
do
  local SIZE = 7

  -- How long behind the beginning of an epoch, which opens in the meantime, members may be away at most: those who look for the server find it
  -- within some second of each other.
  local AWAY_FOR = 1500000

  -- Returns the present epoch. `caller` is the calling replica; nil where a silence does not matter. `known_epoch` is the latest epoch that the caller knows; `run` is the server's run as the caller knows
  -- it: empty if unknown, `?` on a Cluster, where the caller does not know the server. `text` is the value of the key, `settle` how
  -- long a new epoch takes to open, and how long a silence is a doubt; 0: there are no epochs. `live_key` is the set of the states that are
  -- there, which begins with the epoch; nil where nothing is changed.
  local function open(key, text, now, known_epoch, run, settle, caller, live_key)
    if settle == 0 then
      return { id = 0, opens = 0, memory = 0, kept_until = math.huge, unused_from = 0, resets = {}, pauses = {}, members = {} }
    end
    if run == "?" then run = string.match(redis.call("INFO", "server"), "run_id:(%x+)") or "" end
    local row, epoch = Store.read(key, text, 12), nil
    if not row then return Epoch.begin(nil, key, now, known_epoch, run, settle, true, live_key) end
    epoch = {
      id = row[1], run = row[2] == "" and run or row[2], begun = row[3], kept_until = row[4], resets = row[5], pauses = row[6],
      memory = row[7], silent_from = row[8], version = row[9], members = row[10], opened = row[11],
      unused_from = row[12], key = key,
    }
    -- An epoch older than the known one comes from an old copy; a clock before its beginning was set back.
    local is_whole = epoch.id >= known_epoch and now >= epoch.begun and (run == "" or run == epoch.run)
    if is_whole then
      if epoch.opened == 0 and known_epoch == epoch.id then
        epoch.opened, epoch.is_changed = now + settle, true
      end
      epoch.opens = epoch.opened > 0 and epoch.opened or now + settle
      local members, heard, has_others = epoch.members, 0, false
      for index = 1, #members, SIZE do
        if members[index + 1] > heard then heard = members[index + 1] end
        if members[index + 6] == 1 and members[index] ~= caller then has_others = true end
      end
      -- A replica that is alone knows by itself what it has granted.
      if not caller or not has_others or now - max(heard, epoch.opens) <= settle then return epoch end
    end
    return Epoch.begin(epoch, key, now, known_epoch, run, settle, not is_whole, live_key)
  end

  -- Makes the key of an epoch outlive a state that expires at an instant, and, as before, those of the epochs before. Writes it now and then,
  -- if it has changed, or each time if `always`.
  local function keep(key, epoch, now, expires, always)
    -- How long the key outlives every state at most; half as long at least.
    local KEPT = 30000000
    local least = max(now, expires, epoch.opens) + KEPT / 2
    if epoch.kept_until < least then
      epoch.kept_until = least + KEPT / 2
    elseif not (always or epoch.is_changed) then
      return
    end
    epoch.is_changed = nil
    local row = {
      epoch.id, epoch.run, epoch.begun, epoch.kept_until, epoch.resets, epoch.pauses, epoch.memory, epoch.silent_from, epoch.version,
      epoch.members, epoch.opened, epoch.unused_from,
    }
    redis.call("SET", key, cmsgpack.pack(row), "PX", ceil((epoch.kept_until - now) / 1000))
  end

  -- Returns the part of an answer that describes an epoch: the instant of the call, the epoch, when it opens or 0, the last reset or 0,
  -- the memory.
  local function answer(epoch, now)
    local resets = epoch.resets
    return { now, epoch.id, now < epoch.opens and epoch.opens or 0, resets[#resets - 1] or 0, epoch.memory }
  end

  local function rare()
    -- Lets the set of the states that are there live until an instant at least: it outlives all states, as the epoch does.
    local function keep_live(live_key, epoch, now, till)
      redis.call("PEXPIRE", live_key, ceil((max(epoch.kept_until, till) - now) / 1000) + 45000)
    end

    -- The member that the set has for itself, behind every instant.
    local ITSELF, FOREVER = "", "9000000000000000"

    -- Returns the epoch after `before`, which may be nil. Counted members may have been granted their share until now, so their permits
    -- matter for as long from now on. Those who were not heard right before a silence had been cut off from the others: their share is
    -- theirs already. But one that owes a report of an earlier epoch owes it still: what was charged for it stays.
    local function begin(before, key, now, known, run, settle, is_lost, live_key)
      local id = max(now, known + 1, before and before.id + 1 or 0)
      local epoch = {
        id = id, run = run, begun = now, opened = 0, opens = now + settle, kept_until = before and before.kept_until or 0, resets = {},
        pauses = {}, memory = id, silent_from = now, unused_from = 0, version = before and before.version or 0,
        members = before and before.members or {}, key = key, is_changed = true,
      }
      -- Behind a silence it may have been lost without that being noticed yet.
      if live_key and is_lost then
        redis.call("ZADD", live_key, FOREVER, ITSELF)
        keep_live(live_key, epoch, now, now)
      end
      if not before then return epoch end
      local resets, pauses, members, heard, counted = before.resets, before.pauses, before.members, 0, 0
      -- Instants ahead are of another clock. So may all be where the clock was set back, or a caller has seen that: what was used since a
      -- reset would seem to lie before it. Members have forgotten what was used before, and do not report it.
      local is_set_back = known > before.id or now < before.begun
      -- A caller that has seen a step knows no later epoch.
      local is_stepped = known == before.id + 1 or now < before.begun
      if not is_set_back and (resets[#resets - 1] or 0) <= now then epoch.resets = resets end
      if (pauses[#pauses - 3] or 0) <= now then epoch.pauses = pauses end
      for index = 1, #members, SIZE do
        heard, counted = max(heard, members[index + 1]), counted + members[index + 6]
        local last, matters_until = members[index + 1], members[index + 2]
        if members[index + 6] == 1 and last > 0 then
          local until_now = now + matters_until - last
          members[index + 2] = last > now and until_now or max(matters_until, until_now)
        end
        -- The server's copies of those that have ended have instants of the clock before: those who are there move theirs with it.
        if is_stepped and last == 0 then members[index + 3] = 0 end
        -- An instant ahead is of another clock: a silence would be noticed only when this one has caught up.
        members[index + 1] = min(last, now)
      end
      if is_lost then return epoch end
      epoch.memory, epoch.silent_from = before.memory, heard
      -- A later call than this would have begun an epoch itself, but for that of a replica that is alone. A slot is used within a lease of
      -- a call, and a lease is no longer than `settle`.
      local called_until = max(heard, before.opens) + settle
      if counted > 1 then epoch.unused_from = called_until + settle end
      for index = 1, #members, SIZE do
        local is_cut_off = members[index + 1] < heard - 2 * settle
        if is_cut_off and members[index + 4] >= before.id then members[index + 4] = id end
      end
      return epoch
    end

    -- Returns the epoch in which a key was lost, deleted or evicted: replicas write back the grants that it held.
    local function begin_without_key(epoch, now, settle, live_key)
      epoch = begin(epoch, epoch.key, now, epoch.id, epoch.run, settle, true, live_key)
      -- Before it is forgotten that the key was there: the call may end early, as one that was carried out before does.
      keep(epoch.key, epoch, now, now)
      return epoch
    end

    -- Returns whether the set of the states that are there is whole. One that is there without itself is of a version that did not know of
    -- that: nobody else makes one so (note_live).
    local function is_whole(live_key)
      if redis.call("ZSCORE", live_key, ITSELF) then return true end
      if not redis.call("ZRANGEBYSCORE", live_key, "0", "+inf", "LIMIT", 0, 1)[1] then return false end
      redis.call("ZADD", live_key, FOREVER, ITSELF)
      return true
    end

    -- Returns the epoch, a new one if the set of the states that are there was lost.
    local function check_live(epoch, live_key, now, settle)
      if is_whole(live_key) then return epoch end
      return begin_without_key(epoch, now, settle, live_key)
    end

    -- Returns the epoch after a state was found missing: a new one if it was there and should be still.
    local function without_state(epoch, live_key, key, now, settle)
      local till = redis.call("ZSCORE", live_key, key)
      if not till then return check_live(epoch, live_key, now, settle) end
      if tonumber(till) > now then epoch = begin_without_key(epoch, now, settle, live_key) end
      redis.call("ZREM", live_key, key)
      return epoch
    end

    -- Notes until when a state is there. The heartbeat forgets it later. A set that was lost is not made anew: the next heartbeat is to
    -- notice.
    local function note_live(live_key, key, epoch, now, till)
      if not is_whole(live_key) then return end
      redis.call("ZADD", live_key, string.format("%.0f", till), key)
      keep_live(live_key, epoch, now, till)
    end

    -- For how long the set of moves lives behind the last heartbeat.
    local MOVED_KEPT_MS = 60000

    -- Notes that a state's bookings were moved. The heartbeat tells it, and forgets it later. A set that was lost gets no member for itself:
    -- the next heartbeat is to notice.
    local function note_moved(moved_key, key, now)
      redis.call("ZADD", moved_key, string.format("%.0f", now), key)
      redis.call("PEXPIRE", moved_key, MOVED_KEPT_MS)
    end

    -- Forgets the moves until an instant. Returns since when the set of moves knows them all: it is made anew where it was lost.
    local function moved_since(moved_key, now, forgets)
      -- The member that the set has for itself tells when it was made, behind every instant.
      local BEHIND = 4000000000000000
      local made = tonumber(redis.call("ZSCORE", moved_key, ITSELF) or 0) - BEHIND
      -- An instant ahead is of another clock.
      if made < 0 or made > now then
        made = now
        redis.call("ZADD", moved_key, string.format("%.0f", BEHIND + made), ITSELF)
      end
      redis.call("ZREMRANGEBYSCORE", moved_key, "-inf", string.format("%.0f", forgets))
      redis.call("ZREMRANGEBYSCORE", moved_key, string.format("%.0f", now + 1), string.format("%.0f", BEHIND - 1))
      redis.call("PEXPIRE", moved_key, MOVED_KEPT_MS)
      return made
    end

    -- Returns whether every member whose permits may matter has reported what it was granted before the server's present memory.
    local function knows_all(epoch, now)
      local members = epoch.members
      for index = 1, #members, SIZE do
        if members[index + 3] < epoch.memory and members[index + 2] > now then return false end
      end
      return true
    end

    -- Returns how many members have not reported what they granted without the server before the epoch.
    local function unreported(epoch)
      local count, members = 0, epoch.members
      for index = 1, #members, SIZE do
        if members[index + 1] > 0 and members[index + 4] < epoch.id then count = count + 1 end
      end
      return count
    end

    -- Returns how many members may still go by their shares, and `of` how many that is, because they have not come back since the epoch began,
    -- or have heard the server in it and lost it again; nil if there are none. One that stays away for longer has died, as a rule.
    local function away(epoch, now)
      -- A member that hears the server says so within this time; one that does not goes by its share no sooner.
      local SILENT = 500000
      local count, of, members = 0, 0, epoch.members
      for index = 1, #members, SIZE do
        local last = members[index + 1]
        local is_away = members[index + 4] < epoch.id or last >= epoch.begun and now - last > SILENT
        if last > 0 and (is_away or members[index + 6] == 1) then
          count, of = count + (is_away and 1 or 0), of + 1
        end
      end
      return count > 0 and { count = count, of = of } or nil
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

    return {
      begin = begin, check_live = check_live, keep_live = keep_live, without_state = without_state, note_live = note_live, note_moved = note_moved, moved_since = moved_since, knows_all = knows_all, unreported = unreported, away = away,
      is_part = is_part, reset_of = reset_of, pause_of = pause_of,
    }
  end

  Epoch = setmetatable({ SIZE = SIZE, AWAY_FOR = AWAY_FOR, open = open, keep = keep, answer = answer, rare = rare }, Lazy)
end
