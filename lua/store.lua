-- store.lua: the server's clock, and reading and writing its keys.

local Store
do
  -- Returns the instant of a call in microseconds. Zero stands for this server's clock.
  local function now(given)
    if given ~= 0 then return given end
    local time = redis.call("TIME")
    return time[1] * 1000000 + time[2]
  end

  -- Returns the unpacked value of a key, or nil if it holds nothing. `text` is its value as MGET returned it; `size` is the number
  -- of elements, where that is fixed. A value that weir has not written ends the call before anything is written: it is neither
  -- overwritten nor taken for an unused limit. src/redis/explain.rs knows the error by its first word.
  local function read(key, text, size)
    local reason = "bytes that cannot be read"
    if text then
      local is_packed, value = pcall(cmsgpack.unpack, text)
      if is_packed and type(value) == "table" and #value == (size or #value) then return value end
    else
      -- MGET returns nothing for a key of another type, too.
      local found = redis.pcall("GET", key)
      if type(found) ~= "table" or not string.find(found.err, "WRONGTYPE", 1, true) then return nil end
      reason = "another type: WRONGTYPE"
    end
    error("UNREADABLE the key " .. key .. " holds what weir has not written (" .. reason .. "): delete it", 0)
  end

  -- Returns for how many milliseconds a key lives that matters until an instant. It lives longer than it can matter: the server expires
  -- keys by a clock that it reads once per command, and a call is on its way for a while.
  local function lifetime(now, expires)
    local KEPT_LONGER_MS = 1000
    return ceil((expires - now) / 1000) + KEPT_LONGER_MS
  end

  -- Writes a key that expires at an instant, or deletes it if that has passed. `was` is its value before, or nil.
  local function write(key, was, text, now, expires)
    if expires > now then
      redis.call("SET", key, text, "PX", lifetime(now, expires))
    elseif was then
      redis.call("DEL", key)
    end
  end

  -- Lets a key that is there live until an instant.
  local function renew(key, now, expires) redis.call("PEXPIRE", key, lifetime(now, expires)) end

  Store = { now = now, read = read, write = write, renew = renew }
end
