-- prelude.lua: what every include uses.

local ceil, floor, max, min = math.ceil, math.floor, math.max, math.min

-- The metatable of a module some of whose functions few calls need: `rare` returns those, at the first use of one. A server runs the
-- whole script with each call, and makes every function in it anew.
local Lazy = {
  __index = function(module, name)
    setmetatable(module, nil)
    for key, value in pairs(module.rare()) do module[key] = value end
    return module[name]
  end,
}

-- How much this call has done: about so many instructions. A search that has come far stops beyond `max`, and the next call goes on from
-- there.
local work = { done = 0, max = math.huge }
