-- earlier_layout.lua: the states of the layout before this one, while replicas of it may still run.
--
-- Two layouts side by side would be two quotas, and a replica of the earlier one cannot be changed. So a script of this layout keeps each
-- state in both layouts, in one step, for as long as the epoch of the earlier one lives. That key lives while its replicas do, and longer
-- than each state that they have written. A state of v1 that this layout has written begins with the bookings of both, and either layout
-- goes on from there: earlier_state.lua.
--
-- A state of v1 has the fields of a state in their order, but for
--   11 its epoch, 12 to 17 what v1 recovers by, 18 until when it exists, 19 to 21 the last reset, the pause and the external usage
-- and `written_back`, the 13th, { replica, number, number, ... }, has a mark for "this layout knows the state". v1 keeps the mark, and
-- drops it together with the bookings when it loses its memory.

local Earlier
do
  local STATE_SIZE, EPOCH_SIZE = 21, 6
  local MARK = 2

  local function rare()
    -- Notes the epoch of the earlier layout, whose key holds `text`. The keys of its states are KEYS from `first` on, in the order of
    -- this layout's states from KEYS[from] on.
    local function open(epoch_key, text, first, from)
      Earlier.epoch = Store.read(epoch_key, text, EPOCH_SIZE)
      Earlier.id, Earlier.keys, Earlier.found = Earlier.epoch[1], {}, {}
      for index = 0, #KEYS - first do Earlier.keys[KEYS[from + index]] = KEYS[first + index] end
    end

    local function is_marked(row)
      for index = 1, #row[13], 3 do
        if row[13][index] == MARK then return true end
      end
      return false
    end

    -- Returns the stored row of the state that belongs to this layout's `key`, in the present epoch; nil if there is none.
    local function read(key)
      local own = Earlier.keys[key]
      local text = redis.call("MGET", own)[1]
      local row = text and Store.read(own, text, STATE_SIZE)
      if row and row[11] ~= Earlier.id then row = nil end
      Earlier.found[key] = { row = row, text = text or nil }
      return row
    end

    -- Returns rows in pages as v1 knows them: without pages.
    local function joined(pages)
      local rows = {}
      for _, page in ipairs(pages) do
        for _, value in ipairs(page) do rows[#rows + 1] = value end
      end
      return rows
    end

    -- Returns a stored timeline as v1 knows it: differences of instants and their permits alone.
    local function differences(stored)
      local entries, permits, stale = stored[1], stored[2], stored[5]
      if not stale then return { entries, permits } end
      local at, held, before = {}, {}, 0
      for index = stale + 1, #entries do
        if permits[index] > 0 then
          at[#at + 1], held[#held + 1], before = entries[index] - before, permits[index], entries[index]
        end
      end
      return { at, held }
    end

    -- Writes a state's row in the earlier layout, too.
    local function keep(key, row, now, lives_until)
      local before, own = Earlier.found[key], {}
      -- Without a row the state has never been called, and is new.
      local was = before.row or { [12] = 0, [13] = {}, [14] = 0, [15] = 0, [16] = 0, [17] = now, [18] = 0 }
      for index = 1, 10 do own[index] = row[index] end
      own[6], own[9] = joined(row[6]), differences(row[9])
      own[11] = Earlier.id
      for index = 12, 17 do own[index] = was[index] end
      own[18] = max(was[18], lives_until)
      for index = 19, STATE_SIZE do own[index] = row[index - 4] end
      if not is_marked(own) then
        local written = own[13]
        written[#written + 1], written[#written + 2], written[#written + 3] = MARK, 0, 0
      end
      Store.write(Earlier.keys[key], before.text, cmsgpack.pack(own), now, own[18])
    end

    return { open = open, is_marked = is_marked, read = read, keep = keep }
  end

  -- `id` is the number of the earlier layout's epoch, while there is one.
  Earlier = setmetatable({ id = false, rare = rare }, Lazy)
end
