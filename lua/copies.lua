-- copies.lua: what each member was granted, kept for the others (src/limiter/recovery/copies.rs).
--
-- Each replica tells with its heartbeats what it was granted, and hears with the answers what the others were. When the server has lost
-- its memory, those who are there restore the copies of those who are not, so that what an ended or cut-off replica was granted is
-- charged where and when it was. Of replicas that have ended it may have the last copies itself, where it was restarted with its data.
-- The copy of one replica is one key beside the epoch, { number, is_final, memory, is_restored, shift, written, text }, which lives for as
-- long as the permits matter:
--   number       grows with each copy of the replica; a later one replaces an earlier one
--   is_final     1: the replica has ended, and was granted nothing more; so who has this copy knows all
--   memory       the memory of the server that the copy was written for; in another one only the last copy of an ended replica counts
--   is_restored  1: written after a loss, by another replica, or kept over it; only such copies are charged, for what a replica tells of
--                itself is in the states already
--   shift        added to the instants, of which the clock has been stepped since
--   written      an instant at which the replica had been granted no less
--   text         lines of a state's name, and how long after the one before each booking is, and its permits: " 120:1 40:2"

local Copies
do
  local function rare()
    local SIZE = 7

    local function key_of(epoch, replica)
      return epoch.key .. string.format(":copy:%.0f", replica)
    end

    -- Returns the copy of a replica, in whichever memory it was written; nil if there is none that can be read: what it would show is charged
    -- then, and no call fails for it.
    local function load(epoch, replica)
      local key = key_of(epoch, replica)
      local is_readable, row = pcall(Store.read, key, redis.call("MGET", key)[1], SIZE)
      if not is_readable or not row then return nil end
      return {
        number = row[1], is_final = row[2] == 1, memory = row[3], is_restored = row[4] == 1, shift = row[5], written = row[6], text = row[7],
      }
    end

    -- Returns the copy of a replica in the server's present memory; nil if there is none.
    local function read(epoch, replica)
      local copy = load(epoch, replica)
      return copy and copy.memory == epoch.memory and copy or nil
    end

    local function write(epoch, replica, copy, lives_for)
      local row = {
        copy.number, copy.is_final and 1 or 0, epoch.memory, copy.is_restored and 1 or 0, copy.shift, copy.written, copy.text,
      }
      redis.call("SET", key_of(epoch, replica), cmsgpack.pack(row), "PX", ceil(max(lives_for, 1000) / 1000))
    end

    -- Takes a replica's own copy, once it has reported all to the server's present memory.
    local function tell(epoch, replica, copy, lives_for)
      local before = read(epoch, replica)
      if before and not before.is_restored and before.number >= copy.number then return end
      copy.is_restored = false
      write(epoch, replica, copy, lives_for)
    end

    -- Takes the copy of another member, whose row begins at `place` of the members. It replaces none from the epoch's opening on: a state
    -- may have been charged with that. A final copy is all that the member would report itself.
    local function restore(epoch, place, copy, now)
      local members = epoch.members
      local replica, matters_until, reported = members[place], members[place + 2], members[place + 3]
      if reported >= epoch.memory or matters_until <= now then return end
      local before = read(epoch, replica)
      if before and (before.number >= copy.number or epoch.id ~= epoch.memory or now >= epoch.opens) then return end
      copy.is_restored = true
      write(epoch, replica, copy, matters_until - now)
      if copy.is_final then members[place + 1], members[place + 3] = 0, epoch.memory end
    end

    -- Takes the last copies of members that have ended for restored ones, where the server has them still: it was restarted with its data. Of
    -- those it may have lost the latest; but a member was granted nothing behind its last copy. An instant ahead is of another clock. So many
    -- bytes at a time that a call stays short: the rest comes with the next heartbeat, before the epoch opens.
    local function adopt_last(epoch, now)
      local TEXT_MAX, row_size, members, size = 65536, Epoch.SIZE, epoch.members, 0
      if epoch.id ~= epoch.memory or now >= epoch.opens then return end
      for place = 1, #members, row_size do
        local replica, heard, matters_until, reported = unpack(members, place, place + 3)
        if heard == 0 and matters_until > now and reported < epoch.memory and size < TEXT_MAX then
          local copy = load(epoch, replica)
          if copy and copy.is_final and copy.memory == reported and copy.written + copy.shift <= now then
            copy.is_restored, size = true, size + #copy.text
            write(epoch, replica, copy, matters_until - now)
            members[place + 3] = epoch.memory
          end
        end
      end
    end

    -- Returns the bookings of a state that the copy of a replica shows, as instants and permits by turns; nil without a restored copy.
    -- Permits that it may have given back since the copy was written are left out: they are charged with those that are not known.
    local function bookings(epoch, replica, key)
      local copy = read(epoch, replica)
      if not copy or not copy.is_restored then return nil end
      local GIVEN_BACK_LATE = 1000000
      local till = copy.is_final and epoch.opens or min(epoch.opens, copy.written + copy.shift - GIVEN_BACK_LATE)
      local found, at = {}, copy.shift
      local _, after = string.find(copy.text, "\n" .. string.match(key, "^.*:v2:limiter:(.*)$") .. " ", 1, true)
      local line = after and string.match(copy.text, "^[^\n]*", after) or ""
      for gap, permits in string.gmatch(line, "(%d+):(%d+)") do
        at = at + tonumber(gap)
        if at <= till then found[#found + 1], found[#found + 2] = at, tonumber(permits) end
      end
      return found
    end

    return { read = read, tell = tell, restore = restore, adopt_last = adopt_last, bookings = bookings }
  end

  Copies = setmetatable({ rare = rare }, Lazy)
end
