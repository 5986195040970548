-- The words of the tables, written by hand.

local MOST_VALUES = 100000 -- so many values of a frame are shown

-- Types: functions (r, name, at, stop, field, into, index, filled) that add nodes to `into` and return where they end

local SIZE, VALUE = {}, {} -- of those that take always the same bytes, and of numbers

local function fail(at, reason, ...) error({ at = at, reason = reason:format(...) }, 0) end
local function note(r, said, ...) r.notes[#r.notes + 1] = said:format(...) end

local function need(at, size, stop) -- where so many bytes end
  return size <= stop - at and at + size or fail(at, "%d bytes are needed, %d are left", size, math.max(0, stop - at))
end

local function add(r, into, node)
  r.count = r.count + 1
  if r.count > MOST_VALUES then fail(node.at, "more values than are shown") end
  into[#into + 1] = node
  return node
end

local function leaf(r, name, at, size, value, field, into, as)
  local node = add(r, into, { path = r.path .. name, name = name, at = at, size = size, value = value, as = as })
  local labels = field and field.labels
  if labels then
    node.label = type(labels) == "function" and labels(value, r) or type(labels) == "table" and labels[value] or nil
    node.labelled, r.odd = true, r.odd or not node.label
    if field.closed and not node.label then note(r, "%s %s is not known", name, tostring(value)) end
  end
  r.scope[name] = value
  return node
end

local function number(size, get, truth) -- `get`: the method of a range that gives its value
  local function value(tvb, at) return tvb(at, size)[get](tvb(at, size)) end
  local function read(r, name, at, stop, field, into)
    local finish, found = need(at, size, stop), value(r.tvb, at)
    if truth and found > 1 then note(r, "%s is %d", name, found) end
    if truth then found = found ~= 0 end
    leaf(r, name, at, size, found, field, into)
    return finish
  end
  SIZE[read], VALUE[read] = size, value
  return read
end

local function raw(r, name, at, size, field, into, as) -- bytes, which may be text
  local value = as == "text" and size > 0 and r.tvb(at, size):string(ENC_UTF_8) or ""
  local used = name:find("^reserved") and size > 0 and tostring(r.tvb(at, size):bytes()):find("[1-9A-F]")
  r.odd = r.odd or used or value:find("%c") ~= nil
  return leaf(r, name, at, size, value, field, into, as)
end

local function counted(r, length, at, stop) -- a length or count, and where what it counts begins
  if type(length) == "string" then return r.scope[length], at end
  local first = need(at, SIZE[length], stop)
  return VALUE[length](r.tvb, at), first
end

local function region(r, length, at, stop, null)
  local size, first = counted(r, length, at, stop)
  if null and size == null then return first end
  if size < 0 or size > stop - first then fail(at, "length says %d bytes, %d are left", size, stop - first) end
  return first, first + size
end

local function blob(as, extent) -- `extent`: where its bytes begin and end; where they do not end it is null
  return function(r, name, at, stop, field, into)
    local first, finish = extent(r, at, stop)
    if finish then raw(r, name, first, finish - first, field, into, as) else leaf(r, name, at, first - at, nil, nil, into, "null") end
    return finish or first
  end
end

local function fixed(size, as)
  local read = blob(as or "bytes", function(r, at, stop) return at, need(at, size, stop) end)
  SIZE[read] = size
  return read
end

local function fixed_text(size) return fixed(size, "text") end
local function text(length, null) return blob("text", function(r, at, stop) return region(r, length, at, stop, null) end) end
local function bytes(length, null) return blob("bytes", function(r, at, stop) return region(r, length, at, stop, null) end) end
local function to_end(r, at, stop) return at, stop end
local rest, rest_text = blob("bytes", to_end), blob("text", to_end)
local uint8, uint16, uint32, uint64 = number(1, "uint"), number(2, "uint"), number(4, "uint"), number(8, "uint64")
local int8, int16, int32, int64 = number(1, "int"), number(2, "int"), number(4, "int"), number(8, "int64")
local uint16le, uint32le, uint64le = number(2, "le_uint"), number(4, "le_uint"), number(8, "le_uint64")
local int16le, int32le, int64le = number(2, "le_int"), number(4, "le_int"), number(8, "le_int64")
local float32, float64, float32le, float64le = number(4, "float"), number(8, "float"), number(4, "le_float"), number(8, "le_float")
local uint128, uint128le, int128le, boolean = fixed(16), fixed(16), fixed(16), number(1, "uint", true)

local function array(count, item) -- without a count to the end
  return function(r, name, at, stop, field, into)
    local size, index = math.huge, 0
    if count then size, at = counted(r, count, at, stop) end
    if count and (size < 0 or size > stop - at) then fail(at, "count says %d, %d bytes are left", size, stop - at) end
    while index < size and (count or at < stop) do
      local before, place = at, #into + 1
      at = item(r, name, at, stop, field, into, index)
      if at == before then fail(at, "takes no bytes") end
      into[place].index, index = index, index + 1
    end
    return at
  end
end

local function repeated(item) return array(nil, item) end

local function object(r, name, at, into, index, body) -- a node with others below it, which `body(children)` reads
  local node = add(r, into, { path = r.path .. name, name = name, at = at, size = 0, index = index, children = {} })
  local path, scope = r.path, r.scope
  r.path, r.scope = node.path .. ".", setmetatable({}, { __index = scope })
  local finish = body(node.children)
  r.path, r.scope, node.size = path, scope, finish - at
  return finish
end

local function left_over(r, at, stop, into)
  if at < stop then raw(r, "trailing", at, stop - at, nil, into, "bytes").secret = r.secret end
  r.trailing = r.trailing or at < stop
  return stop
end

local function read_entries(r, entries, at, stop, into)
  for _, entry in ipairs(entries) do
    local kind = entry[2] or entry.choose
    if type(kind) == "table" then kind = kind.choose end
    if entry.choose or type(entry[2]) == "table" then kind = kind(r) end
    if entry.optional then
      if at < stop then at = read_entries(r, entry.optional, at, stop, into) end
    elseif type(kind) == "table" then
      at = read_entries(r, kind, at, stop, into)
    elseif kind then
      local mark = #into
      r.field, r.secret = r.path .. entry[1], r.secret or entry.secret
      at = kind(r, entry[1], at, stop, entry, into)
      for index = mark + 1, #into do into[index].secret = entry.secret end
    end
  end
  return at
end

local function group(entries)
  return function(r, name, at, stop, field, into, index, filled) -- `filled`: what is left over belongs to it
    return object(r, name, at, into, index, function(children)
      local finish = read_entries(r, entries, at, stop, children)
      return filled and left_over(r, finish, stop, children) or finish
    end)
  end
end

local function sized(length, content)
  return function(r, name, at, stop, field, into)
    local first, finish = region(r, length, at, stop)
    local after = content(r, name, first, finish, field, into, nil, true)
    return after == finish and finish or fail(at, "%d bytes are left over", finish - after)
  end
end

local function bits(kind, parts)
  return function(r, name, at, stop, field, into)
    local finish, value = need(at, SIZE[kind], stop), VALUE[kind](r.tvb, at)
    return object(r, name, at, into, nil, function(children)
      for _, part in ipairs(parts) do leaf(r, part[1], at, finish - at, math.floor(value / part[2]) % part[3], part, children) end
      return finish
    end)
  end
end

local function optional(entries) return { optional = entries } end
local function choice(name, ways, otherwise) return { choose = function(r) return ways[r.scope[name]] or otherwise end } end
