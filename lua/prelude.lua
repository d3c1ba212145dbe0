-- prelude.lua: functions that every include uses.

local ceil, floor, max, min = math.ceil, math.floor, math.max, math.min

-- Returns a module that `make` fills at its first use: a call that does not need the module does not pay for its functions.
local function lazy(make)
  return setmetatable({}, {
    __index = function(module, name)
      setmetatable(module, nil)
      for key, value in pairs(make()) do module[key] = value end
      return module[name]
    end,
  })
end
