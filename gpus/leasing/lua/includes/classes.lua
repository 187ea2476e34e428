-- Servers of a pool that run the same models form a class, so that the next ticket is looked for once per class and
-- not once per server.
-- include: keys
-- include: kept

local function serves(models, model) return models:find(',' .. model .. ',', 1, true) ~= nil end

-- Those of the first that are among the second.
local function shared_models(some, models)
  local both = ','
  for model in some:gmatch('[^,]+') do
    if serves(models, model) then both = both .. model .. ',' end
  end
  return both
end

-- The pool's classes, most specialised first: {{class, models}, ...}; also models that nobody may run now.
local function all_classes(pool)
  if class_lists[pool] then return class_lists[pool] end
  local flat, classes = redis.call('HGETALL', Keys.classes(pool)), {}
  for i = 1, #flat, 2 do classes[#classes + 1] = { flat[i], flat[i + 1] } end
  if #classes > 1 then table.sort(classes, function(a, b) return a[1] < b[1] end) end
  class_lists[pool] = classes
  return classes
end

-- The same, without models that are kept back.
local function read_classes(pool)
  local classes = {}
  for i, class in ipairs(all_classes(pool)) do classes[i] = { class[1], without_kept(pool, class[2]) } end
  return classes
end
