-- prelude.lua: names that every include uses.

local ceil, floor, max, min = math.ceil, math.floor, math.max, math.min

-- Returns a table that is filled by `make` when something in it is first asked for: what few calls need costs the others nothing.
local function lazy(make)
  return setmetatable({}, {
    __index = function(module, name)
      setmetatable(module, nil)
      for key, value in pairs(make()) do module[key] = value end
      return module[name]
    end,
  })
end
