-- The runtime, written by hand: what follows it is generated from the tables.

local MOST_VALUES = 100000 -- so many values of a frame are shown
local LARGEST, LARGEST_UNKNOWN = 0x4000000, 0x100000 -- no longer frame is believed
local SUMMED_UP, CUT = 7, 40 -- so many parts are in the info column, of so many bytes each
local lost_segment = Field.new("tcp.analysis.lost_segment")

-- Types: `read(r, name, at, stop, field, into, index)` adds nodes to `into` and returns where they end

local function fail(at, reason) error({ at = at, reason = reason }, 0) end

local function need(at, size, stop)
  if size > stop - at then fail(at, ("%d bytes are needed, %d are left"):format(size, math.max(0, stop - at))) end
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
    if field.closed and not node.label then r.notes[#r.notes + 1] = name .. " " .. tostring(value) .. " is not known" end
  end
  r.scope[name] = value
  return node
end

local function number(size, get) -- `get`: the method of a range that gives its value
  local function value(tvb, at)
    local range = tvb(at, size)
    return range[get](range)
  end
  local function read(r, name, at, stop, field, into)
    need(at, size, stop)
    leaf(r, name, at, size, value(r.tvb, at), field, into)
    return at + size
  end
  return { size = size, value = value, read = read }
end

local function raw(r, name, at, size, field, into, as) -- bytes, which may be text
  local value = as == "text" and size > 0 and r.tvb(at, size):string(ENC_UTF_8) or ""
  local used = name:find("^reserved") and size > 0 and tostring(r.tvb(at, size):bytes()):find("[1-9A-F]")
  r.odd = r.odd or used or value:find("%c") ~= nil
  return leaf(r, name, at, size, value, field, into, as)
end

local function fixed(size, as)
  local function read(r, name, at, stop, field, into)
    need(at, size, stop)
    raw(r, name, at, size, field, into, as or "bytes")
    return at + size
  end
  return { size = size, read = read }
end

local uint8, uint16, uint32, uint64 = number(1, "uint"), number(2, "uint"), number(4, "uint"), number(8, "uint64")
local int8, int16, int32, int64 = number(1, "int"), number(2, "int"), number(4, "int"), number(8, "int64")
local uint16le, uint32le, uint64le = number(2, "le_uint"), number(4, "le_uint"), number(8, "le_uint64")
local int16le, int32le, int64le = number(2, "le_int"), number(4, "le_int"), number(8, "le_int64")
local float32, float64, float32le, float64le = number(4, "float"), number(8, "float"), number(4, "le_float"), number(8, "le_float")
local uint128, uint128le, int128le = fixed(16), fixed(16), fixed(16)
local function fixed_text(size) return fixed(size, "text") end

local boolean = {}
function boolean.read(r, name, at, stop, field, into)
  need(at, 1, stop)
  local value = r.tvb(at, 1):uint()
  leaf(r, name, at, 1, value ~= 0, field, into)
  if value > 1 then r.notes[#r.notes + 1] = name .. " is " .. value end
  return at + 1
end

local function remaining(as)
  return { read = function(r, name, at, stop, field, into)
    raw(r, name, at, stop - at, field, into, as)
    return stop
  end }
end

local rest, rest_text = remaining("bytes"), remaining("text")

local function counted(r, length, at, stop) -- a length or count, and where what it counts begins
  if type(length) == "string" then return r.scope[length], at end
  need(at, length.size, stop)
  return length.value(r.tvb, at), at + length.size
end

local function region(r, length, at, stop, null)
  local size, first = counted(r, length, at, stop)
  if null and size == null then return first end
  if size < 0 or size > stop - first then fail(at, ("length says %d bytes, %d are left"):format(size, stop - first)) end
  return first, first + size
end

local function prefixed(as, length, null)
  return { read = function(r, name, at, stop, field, into)
    local first, finish = region(r, length, at, stop, null)
    if finish then raw(r, name, first, finish - first, field, into, as) else leaf(r, name, at, first - at, nil, nil, into, "null") end
    return finish or first
  end }
end

local function text(...) return prefixed("text", ...) end
local function bytes(...) return prefixed("bytes", ...) end

local function items(r, item, count, name, at, stop, field, into) -- so many, or all to the end
  local index = 0
  while count and index < count or not count and at < stop do
    local before = at
    at, index = item.read(r, name, at, stop, field, into, index), index + 1
    if at == before then fail(at, name .. " takes no bytes") end
  end
  return at
end

local function repeated(item)
  return { read = function(r, name, at, stop, field, into) return items(r, item, nil, name, at, stop, field, into) end }
end

local function array(count, item)
  return { read = function(r, name, at, stop, field, into)
    local size, first = counted(r, count, at, stop)
    if size < 0 or size > stop - first then fail(at, ("count says %d, %d bytes are left"):format(size, stop - first)) end
    return items(r, item, size, name, first, stop, field, into)
  end }
end

local function object(r, name, at, into, index, body) -- a node with others below it, which `body(children)` reads
  local node = add(r, into, { path = r.path .. name, name = name, at = at, size = 0, index = index, children = {} })
  local path, scope = r.path, r.scope
  r.path, r.scope = node.path .. ".", setmetatable({}, { __index = scope })
  local finish = body(node.children)
  r.path, r.scope, node.size = path, scope, finish - at
  return finish
end

local function left_over(r, at, stop, into)
  if at < stop then
    raw(r, "trailing", at, stop - at, nil, into, "bytes").secret = r.secret
    r.trailing = true
  end
  return stop
end

local function read_entries(r, entries, at, stop, into)
  for _, entry in ipairs(entries) do
    local kind = entry[2]
    local chosen = entry.choose or kind and kind.choose
    if chosen then kind = chosen(r) end
    if entry.optional then
      if at < stop then at = read_entries(r, entry.optional, at, stop, into) end
    elseif kind and not kind.read then
      at = read_entries(r, kind, at, stop, into)
    elseif kind then
      local mark = #into
      r.field, r.secret = r.path .. entry[1], r.secret or entry.secret
      at = kind.read(r, entry[1], at, stop, entry, into)
      for index = mark + 1, #into do into[index].secret = entry.secret end
    end
  end
  return at
end

local function group(entries)
  local function read(r, name, at, stop, field, into, index, filled) -- `filled`: what is left over belongs to it
    return object(r, name, at, into, index, function(children)
      local finish = read_entries(r, entries, at, stop, children)
      return filled and left_over(r, finish, stop, children) or finish
    end)
  end
  return { read = read, entries = entries }
end

local function sized(length, content)
  return { read = function(r, name, at, stop, field, into)
    local first, finish = region(r, length, at, stop)
    local after = content.read(r, name, first, finish, field, into, nil, true)
    if after < finish then fail(at, (finish - after) .. " bytes are left over") end
    return finish
  end }
end

local function bits(kind, parts)
  return { read = function(r, name, at, stop, field, into)
    need(at, kind.size, stop)
    local value = kind.value(r.tvb, at)
    return object(r, name, at, into, nil, function(children)
      for _, part in ipairs(parts) do leaf(r, part[1], at, kind.size, math.floor(value / part[2]) % part[3], part, children) end
      return at + kind.size
    end)
  end }
end

local function optional(entries) return { optional = entries } end

local function choice(name, alternatives, otherwise)
  return { choose = function(r) return alternatives[r.scope[name]] or otherwise end }
end

-- What no table says

local never = { read = function(r, name, at) fail(at, "its kind is not known") end }

local sasl_username = {} -- not on the wire: what the data of PLAIN say
function sasl_username.read(r, name, at, stop, field, into)
  local data = into[#into]
  local plain = r.scope.mechanism == "PLAIN" and data.size > 0 and data.as == "bytes" and r.tvb(data.at, data.size):bytes():raw()
  local user = plain and plain:match("^%z([^%z%c]+)%z[^%z]+$")
  if user then leaf(r, name, at, 0, user, field, into, "told") end
  return at
end

local created_at = {} -- of either byte order: the one that gives a time from 2020 to 2100
function created_at.read(r, name, at, stop, field, into)
  need(at, 8, stop)
  local little, big = r.tvb(at, 8):le_uint64(), r.tvb(at, 8):uint64()
  local function fits(value) return value:tonumber() >= 1577836800000000 and value:tonumber() < 4102444800000000 end
  leaf(r, name, at, 8, fits(big) and not fits(little) and big or little, field, into)
  return at + 8
end

local permissions = {} -- rights, and flags that say whether those of another stream or topic follow
function permissions.read(r, name, at, stop, field, into)
  local function level(depth, children)
    local rights = r.P.permissions[depth]
    at = read_entries(r, rights, at, stop, children)
    for index = 0, rights.list and stop or -1 do
      need(at, 1, stop)
      at = at + 1
      if r.tvb(at - 1, 1):uint() ~= 1 then break end
      object(r, rights.list, at, children, index, function(below) return level(depth + 1, below) end)
    end
    return at
  end
  return object(r, name, at, into, nil, function(children) return level(1, children) end)
end

local function try(r, into, reader, ...) -- whether it reads; if not, all is as before
  local mark, path, scope = #into, r.path, r.scope
  if pcall(reader, r, into, ...) then return true end
  r.path, r.scope = path, scope
  while #into > mark do table.remove(into) end
  return false
end

local function body(r, name, at, size, into)
  need(at, size, at + size)
  raw(r, name, at, size, nil, into, "bytes")
  return at + size
end

local function tracking(r, into, name, at, stop, snapshot)
  for index = 0, stop do
    if at >= stop then return end
    at = object(r, name, at, into, index, function(children)
      at = uint8.read(r, "type", at, stop, { labels = r.P.tracking_types }, children)
      local label = children[1].label or fail(at, "no tracking block")
      at = text(uint8).read(r, "id", at, stop, nil, children)
      if label == "sequence" and snapshot then at = uint64.read(r, "chunk_id", at, stop, nil, children) end
      return (label == "timestamp" and int64 or uint64).read(r, label, at, stop, nil, children)
    end)
  end
end

local function message(r, form, at, stop, first, kind, into) -- an entry: its end, and how many messages it has; `first`: its offset
  need(at, 4, stop)
  if first then leaf(r, "offset", at, 0, first, nil, into, "told") end
  local flags = r.tvb(at, 1):uint()
  if flags < 128 then
    at = uint32.read(r, "size", at, stop, nil, into)
    local size = r.scope.size
    need(at, size, stop)
    if kind == 0 or not try(r, into, tracking, "tracking", at, at + size, kind == 2) then body(r, "body", at, size, into) end
    return at + size, 1
  end
  local compression = math.floor(flags / 16) % 8
  leaf(r, "compression", at, 1, compression, { labels = r.P.compressions }, into)
  leaf(r, "reserved", at, 1, flags % 16, nil, into)
  at = read_entries(r, form.sub_batch, at + 1, stop, into)
  local size, records = r.scope.size, r.scope.num_records
  need(at, size, stop)
  if compression > 0 then return body(r, "body", at, size, into), records end
  stop = at + size
  for index = 0, records - 1 do
    at = object(r, "messages", at, into, index, function(children)
      if first then leaf(r, "offset", at, 0, first + index, nil, children, "told") end
      at = uint32.read(r, "size", at, stop, nil, children)
      need(at, r.scope.size, stop)
      return body(r, "body", at, r.scope.size, children)
    end)
  end
  return left_over(r, at, stop, into), records
end

local function published_as(filtered)
  return { read = function(r, name, at, stop, field, into)
    need(at, 4, stop)
    local count = r.tvb(at, 4):int()
    at = at + 4
    for index = 0, stop do
      if at >= stop then
        if index ~= count then r.notes[#r.notes + 1] = ("count says %d messages, %d are there"):format(count, index) end
        break
      end
      at = object(r, name, at, into, index, function(children)
        at = uint64.read(r, "publishing_id", at, stop, nil, children)
        if filtered then at = text(int16, -1).read(r, "filter_value", at, stop, nil, children) end
        return (message(r, r.P.forms[1], at, stop, nil, 0, children))
      end)
    end
    return at
  end }
end

local published, published_filtered = published_as(false), published_as(true)

local chunk = {}
function chunk.read(r, name, at, stop, field, into)
  local form = r.P.forms[1]
  for _, other in ipairs(r.P.forms) do -- where there are several, the one in which its data fill the frame
    local size = other.size
    if r.P.forms[2] and stop - at >= size and r.tvb(at + size - 4, 4):uint() == stop - at - size then form = other end
  end
  return object(r, name, at, into, nil, function(children)
    at = read_entries(r, form.header, at, stop, children)
    local head = r.scope
    local offset, trailer, finish, records = head.chunk_first_offset, head.trailer_length or 0, at + head.data_length, nil
    need(at, head.data_length, stop)
    for index = 0, head.num_entries - 1 do
      at = object(r, "entries", at, children, index, function(below)
        local after
        after, records = message(r, form, at, finish, offset, head.chunk_type or 0, below)
        return after
      end)
      offset = offset + records
    end
    at = left_over(r, at, finish, children)
    if trailer == 0 or stop - at < trailer then return at end
    if not try(r, children, tracking, "trailer", at, at + trailer, false) then body(r, "trailer_data", at, trailer, children) end
    return at + trailer
  end)
end

local function packed_version(value)
  return ("%d.%d.%d"):format(math.floor(value / 0x100000), math.floor(value / 0x400) % 0x400, value % 0x400)
end

local function since(P, by_layout, layout) -- what holds from a layout on, and which layout that is
  for rank = P.rank[layout], 1, -1 do
    local found = by_layout[P.layouts[rank]]
    if found then return found, P.layouts[rank] end
  end
end

local function status_name(value, r)
  local name = since(r.P, r.P.statuses[value] or {}, r.layout)
  return name ~= "" and name or nil
end

-- A frame, as lists of entries one behind the other

local function read_frame(P, tvb, reading)
  local r = { P = P, tvb = tvb, path = "", scope = {}, count = 0, notes = {}, nodes = {}, reading = reading, layout = reading.layout }
  r.top, r.head = r.scope, reading.head or #reading.lists[1]
  local at, stop = 0, tvb:len()
  local ok, wrong = pcall(function()
    for _, entries in ipairs(reading.lists) do at = read_entries(r, entries, at, stop, r.nodes) end
    left_over(r, at, stop, r.nodes)
  end)
  if not ok and type(wrong) ~= "table" then error(wrong, 0) end
  r.fault = stop < tvb:reported_len() and { at = stop, reason = "cut short by the capture" } or not ok and wrong or nil
  r.sound = not r.fault and not r.trailing
  return r
end

local function best_of(P, tvb, readings) -- the first without a flaw, else the first that fills the frame, else the one that reads furthest
  local best, rank
  for _, reading in ipairs(readings) do
    local r = read_frame(P, tvb, reading)
    local own = r.sound and (#r.notes == 0 and -2 or -1) or r.fault and 1 + 1 / (1 + r.fault.at) or 0
    if not best or own < rank then best, rank = r, own end
    if rank == -2 then break end
  end
  return best
end

-- The tree and the info column

local AS = {
  uint64 = function(value) return type(value) == "number" and UInt64.new(value) or value end,
  int64 = function(value) return typeof(value) == "UInt64" and Int64.new(value:lower(), value:higher()) or value end,
  string = function(value, node, range) return node.as == "bytes" and node.size > 0 and tostring(range:bytes()):lower() or tostring(value) end,
}

local function show(P, r, tree, nodes)
  for _, node in ipairs(nodes) do
    local field = P.fields[node.path] or P.fields.trailing
    local range, item = r.tvb(node.at, node.size), nil
    if node.secret and node.as ~= "null" and not P.proto.prefs.secrets then
      item = tree:add(field.proto, range, ("<redacted %d bytes>"):format(node.size))
    elseif node.children or node.as == "null" then
      item = field.kind == "string" and tree:add(field.proto, range, "") or tree:add(field.proto, range)
      item:append_text(node.index and "[" .. node.index .. "]" or node.as and " (null)" or "")
      show(P, r, item, node.children or {})
    elseif field.kind == "bytes" then
      item = tree:add(field.proto, range)
    else
      local as = AS[field.kind]
      item = tree:add(field.proto, range, as and as(node.value, node, range) or node.value)
    end
    if node.as == "told" then item:set_generated() end
    if node.label and not node.secret then
      if not field.values then item:append_text(" (" .. node.label .. ")") end
      local label = P.fields[node.path .. "_label"]
      if label then tree:add(label.proto, range, node.label):set_hidden() end
    end
  end
end

local function told(node) -- a value in the info column
  if node.secret or node.as == "bytes" or node.as == "null" then return nil end
  for _, below in ipairs(node.children or {}) do
    if below.name == "value" then return told(below) end
  end
  local value = node.label or not node.children and tostring(node.value) or ""
  if #value > CUT then value = value:sub(1, CUT):gsub("[\128-\255]*$", "") .. "..." end
  return value ~= "" and value:gsub("[%c\127]", function(one) return ("\\x%02x"):format(one:byte()) end) or nil
end

local function summary(r)
  local parts, lists = { r.reading.name, ({ request = ">", response = "<" })[r.reading.kind] }, {}
  for index = r.head + 1, #r.nodes do
    local node = r.nodes[index]
    local value = told(node)
    if node.index then
      lists[node.name] = lists[node.name] or #parts + 1
      parts[lists[node.name]] = ("%s: %d"):format(node.name, node.index + 1)
    elseif value then
      parts[#parts + 1] = node.labelled and value or node.name .. "=" .. value
    end
    if #parts > SUMMED_UP then break end
  end
  return table.concat(parts, " ")
end

-- Protocols, and their conversations: those of the same addresses and ports are one

local Protocol = {}
Protocol.__index = Protocol

local function protocol(name, title, ports)
  local P = { name = name, title = title, proto = Proto(name, title), ports = {}, fields = {}, protos = {}, messages = {}, forms = {}, commands = {} }
  for _, port in ipairs(ports) do P.ports[port] = true end
  return setmetatable(P, Protocol)
end

local TYPES = { none = ftypes.NONE, string = ftypes.STRING, bytes = ftypes.BYTES, bool = ftypes.BOOLEAN, double = ftypes.DOUBLE }

function Protocol:field(path, kind, values, note)
  local title = path:gsub("^.*%.", ""):gsub("_", " "):gsub("^%l", string.upper)
  local whole = kind:find("int")
  local made = ProtoField.new(title, self.name .. "." .. path, TYPES[kind] or ftypes[kind:upper()], values, whole and base.DEC or base.NONE, nil, note)
  self.fields[path] = { proto = made, kind = kind, values = values }
  self.protos[#self.protos + 1] = made
end

function Protocol:form(header, sub_batch) -- how chunks are laid out
  local size = 0
  for _, entry in ipairs(header) do size = size + entry[2].size end
  self.forms[#self.forms + 1] = { header = header, sub_batch = sub_batch, size = size }
end

function Protocol:message(name, kind, side, match, entries)
  local key = ""
  self.matched, self.head_size = match, 0
  for _, entry in ipairs(self.head) do
    self.head_size = self.head_size + entry[2].size
    if match[entry[1]] then key = key .. match[entry[1]] .. "/" end
  end
  self.messages[key] = self.messages[key] or {}
  table.insert(self.messages[key], { name = name, kind = kind, side = side, lists = { entries }, head = #self.head })
end

function Protocol:command(code, name, ask, answer) self.commands[code] = { name = name, client = ask, server = answer } end

function Protocol:conversation(pinfo) -- its state, and which side sent this packet
  local one, other = tostring(pinfo.src) .. " " .. pinfo.src_port, tostring(pinfo.dst) .. " " .. pinfo.dst_port
  local key = one < other and one .. " " .. other or other .. " " .. one
  local st = self.conversations[key] or { open = {}, queue = {}, long = {} }
  self.conversations[key] = st
  st.client = st.client or self.ports[pinfo.dst_port] and pinfo.src_port or self.ports[pinfo.src_port] and pinfo.dst_port or nil
  return st, st.client and (pinfo.src_port == st.client and "client" or "server")
end

local function answered(record, asked)
  if asked and not record.request then record.request, asked.response = asked, asked.response or record end
end

-- Protocols whose frames begin with a size and the numbers of a command

local plain = {}
local UNKNOWN, HIDDEN = { { "body", rest } }, { { "body", rest, secret = true } }
local LOGIN = { PeerProperties = true, SaslHandshake = true, SaslAuthenticate = true, Heartbeat = true, Close = true }

local function known_of(P, tvb, at) -- the messages that a frame may be, and its length
  local key, length = "", nil
  for _, entry in ipairs(P.head) do
    local value = entry[2].value(tvb, at)
    at, length = at + entry[2].size, length or value + entry[2].size
    if P.matched[entry[1]] then key = key .. value .. "/" end
  end
  return P.messages[key], length
end

function plain.least(P) return P.head_size end

function plain.length(P, tvb, at)
  local known, length = known_of(P, tvb, at)
  return length >= P.head_size and length <= (known and LARGEST or LARGEST_UNKNOWN) and length or nil
end

function plain.begins(P, tvb) return known_of(P, tvb, 0) and plain.length(P, tvb, 0) end

local function readings_of(P, tvb, from)
  local known, readings = known_of(P, tvb, 0), {}
  for _, one in ipairs(known or {}) do
    if not from or not one.side or one.side == from then readings[#readings + 1] = one end
  end
  return readings[1] and readings or known or { { name = "unknown", kind = "one_way", lists = { P.head, UNKNOWN }, unknown = true } }
end

function plain.decode(P, tvb, st, from, record)
  local r = best_of(P, tvb, readings_of(P, tvb, from))
  local name = r.reading.name
  local astray = st.began and not LOGIN[name] and name ~= "Tune" and name ~= "Open"
  if from ~= "server" and not record.shown and not st.accepted and (astray or not r.sound) then -- it may hold a password
    r = read_frame(P, tvb, { name = name, kind = r.reading.kind, lists = { P.head, HIDDEN } })
  end
  record.shown = true
  r.id = tostring(r.top.correlation_id or r.top.id or r.top.subscription_id or "")
  return r
end

local function ids_of(nodes, found) -- publishing ids
  for _, node in ipairs(nodes) do
    if node.name:find("^publishing_ids?$") then found[#found + 1] = tostring(node.value) end
    ids_of(node.children or {}, found)
  end
  return found
end

function plain.follow(P, st, r, record, pinfo)
  local name, kind, side = r.reading.name, r.reading.kind, r.reading.side
  if not r.sound then return end
  if side and not st.client then st.client = side == "client" and pinfo.src_port or pinfo.dst_port end
  local asks, status = kind ~= "response", nil
  for index = r.head + 1, #r.nodes do status = status or r.nodes[index].labelled and r.nodes[index] end
  record.refused = not asks and (name == "PublishError" or status and not (P.accepted or { [0] = true })[status.value])
  st.began = st.began or asks and name == "SaslHandshake"
  st.accepted = st.accepted or not LOGIN[name] or name == "SaslAuthenticate" and not asks and status and status.label == "OK"
  local port, ids, names = asks and pinfo.src_port or pinfo.dst_port, ids_of(r.nodes, {}), {}
  if ids[1] then
    for index, id in ipairs(ids) do names[index] = ("%d %s %s"):format(port, tostring(r.top.publisher_id), id) end
  else -- one command may be answered with the key of another
    for index, one in ipairs(asks and { r.reading } or readings_of(P, r.tvb)) do names[index] = ("%d %s %s"):format(port, one.name, r.id) end
  end
  for _, key in ipairs(names) do
    if not asks then answered(record, st.open[key]) end
    st.open[key] = asks and record or nil
  end
end

function plain.guess(P, tvb) -- whether frames without a flaw fill these bytes
  local at, strong = 0, false
  while tvb:len() - at >= P.head_size do
    local known, length = known_of(P, tvb, at)
    if not known or length < P.head_size or length > LARGEST then return false end
    if length > tvb:len() - at then break end
    local r = best_of(P, tvb(at, length):tvb(), known)
    if not r.sound or #r.notes > 0 or r.odd then return false end
    at, strong = at + length, strong or length >= 20
  end
  return strong
end

-- Apache Iggy: neither its layout is in a frame nor, mostly, what it answers

local iggy = {}
local HEADER, TOLD, REQUEST, REPLY, EVICTION, REGISTER, OTHERS = 256, 64, 5, 8, 13, 1, 2

local function u32(tvb, at) return tvb:len() >= at + 4 and tvb(at, 4):le_uint() or 0 end
local function byte(tvb, at) return tvb:len() > at and tvb(at, 1):uint() or 0 end
local function hex(tvb, at, size) return tvb:len() >= at + size and tostring(tvb(at, size):bytes()) or "" end

local function is_long(tvb, st, from) -- whether a side has headers of 256 bytes, told by its first bytes
  if st.long[from] == nil and tvb:len() >= 8 then
    local zero, kind = u32(tvb, 0) == 0, byte(tvb, 60)
    if from == "client" then st.long.client = zero
    elseif st.long.client == false or not zero then st.long.server = false
    elseif tvb:len() >= TOLD then st.long.server = u32(tvb, 48) >= HEADER and (kind == REPLY or kind == EVICTION) end
  end
  return st.long[from] or false
end

function iggy.least(P, tvb, st, from) return is_long(tvb, st, from) and TOLD or 8 end

function iggy.length(P, tvb, at, st, from)
  local first, second, size, kind = u32(tvb, at), u32(tvb, at + 4), u32(tvb, at + 48), byte(tvb, at + 60)
  if is_long(tvb, st, from) then return size >= HEADER and size <= LARGEST and kind > 0 and kind < 30 and size or nil end
  if from == "client" then return first >= 4 and first <= (P.commands[second] and LARGEST or LARGEST_UNKNOWN) and first + 4 or nil end
  return (first == 0 and second <= LARGEST or P.statuses[first] and second < 0x10000) and second + 8 or nil
end

function iggy.begins(P, tvb, st, from)
  return iggy.length(P, tvb, 0, st, from) and (from == "server" or st.long[from] or P.commands[u32(tvb, 4)])
end

local function ask(P, tvb, st, record, long) -- what a request asks for
  record.code = u32(tvb, 4)
  if long then
    local operation = byte(tvb, 176)
    local later = u32(tvb, 204) > 0 and 204 or u32(tvb, 196) > 0 and 196 or 200
    record.code = operation == REGISTER and 40 or operation == OTHERS and u32(tvb, later) or P.operations[operation]
    record.operation, record.who = operation, hex(tvb, 128, 16) .. hex(tvb, 168, 8)
    if byte(tvb, 60) ~= REQUEST then return end
  elseif record.code == 32 and tvb:len() > 8 or record.code == 33 and tvb:len() == 8 and st.candidates[1] == "L0" then
    record.code = -record.code -- as the first releases have it
  end
  table.insert(st.queue, record)
end

local function answer(tvb, st, record, long) -- what a response answers: the oldest request, or in the long framing the one it names
  local which, who = 1, hex(tvb, 160, 16) .. hex(tvb, 200, 8)
  if long and byte(tvb, 60) == REPLY then
    record.operation = byte(tvb, 208)
    for index = #st.queue, 1, -1 do which = st.queue[index].who == who and index or which end
  end
  if st.long.client ~= st.long.server or not st.queue[which] then return end
  local asked = table.remove(st.queue, which)
  record.code, record.operation = asked.code, record.operation or asked.operation
  answered(record, asked)
end

local function table_of(P, tvb, st, from, record, layout) -- how a layout reads a frame: a key, the heads, and the forms behind them
  local command, long, v1, kind = P.commands[record.code], st.long[from], layout == "V1", byte(tvb, 60)
  local operation, failed, forms, first = record.operation, false, nil, nil
  if command and since(P, command.client, layout) and (record.code >= 0 or layout == "L0") then
    forms, first = since(P, command[from], layout)
  end
  if not long then
    if from == "server" and u32(tvb, 0) > 0 then return "error " .. layout, { P.error }, { {} } end
    return tostring(first), { from == "client" and P.ask or P.answer }, forms
  elseif from == "client" then
    local early = operation == OTHERS and u32(tvb, 204) == 0 and u32(tvb, 200) > 0
    local header = v1 and (early and "V1a" or "V1") or "V2"
    if operation == REGISTER and forms then forms = { forms[1], forms[2], table.unpack(since(P, P.commands[45].client, layout)) } end
    return header .. tostring(first), { kind == REQUEST and P["request_" .. header] or P.other }, kind == REQUEST and forms or nil
  elseif kind ~= REPLY then
    return "other", { kind == EVICTION and P.eviction or P.other }, kind == EVICTION and { {} } or nil
  end
  local head, listed = v1 and P.reply_V1 or P.reply_V2, P.listed[operation] or operation == REGISTER
  if u32(tvb, v1 and 224 or 216) > 0 then return "error " .. layout, { head }, { {} } end
  if listed and u32(tvb, HEADER) > 0 then return "failed " .. layout, { head, P.results }, { {} } end
  listed = listed and (operation ~= REGISTER or tvb:len() > HEADER)
  return tostring(v1) .. tostring(first), { head, listed and P.results or nil }, forms
end

function iggy.decode(P, tvb, st, from, record, fresh)
  local long, chosen = is_long(tvb, st, from), P.layouts[P.proto.prefs.layout]
  if not st.candidates then
    st.candidates = {}
    for rank, layout in ipairs(P.layouts) do
      if layout == chosen or not chosen and (rank > P.classic) == long then table.insert(st.candidates, layout) end
    end
  end
  if fresh and from == "client" then ask(P, tvb, st, record, long) elseif fresh then answer(tvb, st, record, long) end
  local command, found, keys, kept, likely = P.commands[record.code], {}, {}, { {}, {} }, st.candidates[#st.candidates]
  for _, layout in ipairs(st.candidates) do
    local key, heads, forms = table_of(P, tvb, st, from, record, layout)
    if not found[key] then
      local readings = {}
      for index, form in ipairs(forms or { HIDDEN }) do
        readings[index] = { lists = { heads[1], heads[2] or form, heads[2] and form }, layout = layout, unknown = not forms }
      end
      found[key], keys[#keys + 1] = { readings = readings, layouts = {} }, key
    end
    table.insert(found[key].layouts, layout)
    if layout == st.hint then likely = layout end
  end
  local tells = fresh and keys[2] and tvb:len() == tvb:reported_len() and (from == "client" or tvb:len() > (long and HEADER or 8))
  for _, key in ipairs(tells and keys or {}) do -- the layouts that read it without a flaw, and better those that find nothing odd
    local r = best_of(P, tvb, found[key].readings)
    for _, layout in ipairs(r.sound and not r.reading.unknown and found[key].layouts or {}) do
      table.insert(kept[1], layout)
      if not r.odd then table.insert(kept[2], layout) end
    end
  end
  kept = kept[2][1] and kept[2] or kept[1]
  if kept[1] then
    st.candidates, likely = kept, kept[#kept]
    for _, layout in ipairs(kept) do likely = layout == st.hint and layout or likely end
  end
  local r
  for _, key in ipairs(keys) do
    for _, layout in ipairs(found[key].layouts) do r = layout == likely and best_of(P, tvb, found[key].readings) or r end
  end
  local top = r.top
  local stated = rawget(top, "version") or rawget(top, "sdk_version") or rawget(top, "server_version")
  if r.sound and type(stated) == "string" then
    local known = rawget(top, "server_version") and P.server_versions or P.client_versions
    st.hint = P.edges[stated] or known[stated:match("^%d+%.%d+") or ""] or st.hint
  end
  r.reading.name, r.reading.kind = command and command.name or "unknown " .. (record.code or ""), from == "client" and "request" or "response"
  record.refused = from == "server" and ((top.status or 0) ~= 0 or r.reading.lists[2] == P.results and r.nodes[r.head + 1] ~= nil)
  return r
end

function iggy.follow() end

function iggy.guess(P, tvb, pinfo, st) -- whether requests without a flaw fill these bytes
  local at, strong, trial = 0, false, { long = {}, queue = {} }
  while tvb:len() - at >= iggy.least(P, tvb, trial, "client") do
    local length = iggy.length(P, tvb, at, trial, "client")
    if not length or length > tvb:len() - at then return false end
    local r = iggy.decode(P, tvb(at, length):tvb(), trial, "client", {}, true)
    if not r.sound or r.reading.unknown or r.odd then return false end
    at, strong = at + length, strong or length >= 16
  end
  strong = strong and at == tvb:len()
  if strong then st.client = pinfo.src_port end
  return strong
end

-- What Wireshark calls

function Protocol:frame(tvb, pinfo, root, st, from, told)
  local P, tree, added = self, root:add(self.proto, tvb()), self.added
  if tvb:len() < P.family.least(P, tvb, st, from) or not P.family.length(P, tvb, 0, st, from) then
    tree:append_text(", continuation data")
    return
  end
  local key = pinfo.number .. "/" .. tvb:offset() .. "/" .. tvb:reported_len()
  local record, fresh = P.records[key], not P.records[key]
  if fresh then
    record = { number = pinfo.number, time = pinfo.rel_ts }
    P.records[key] = record
    if lost_segment() then st.queue = { from == "server" and st.queue[#st.queue] or nil } end
  end
  local r = P.family.decode(P, tvb, st, from, record, fresh)
  if fresh then P.family.follow(P, st, r, record, pinfo) end
  st.known = st.known or r.sound
  tree:append_text((", %s %s"):format(r.reading.name, r.reading.kind:gsub("_", "-")))
  show(P, r, tree, r.nodes)
  if record.response then tree:add(added.response_in, record.response.number):set_generated() end
  if record.request then
    local nanoseconds = math.floor((record.time - record.request.time) * 1e9 + 0.5)
    local seconds = math.floor(nanoseconds / 1e9)
    tree:add(added.response_to, record.request.number):set_generated()
    tree:add(added.response_time, NSTime.new(seconds, nanoseconds - seconds * 1e9)):set_generated()
  end
  local function expert_info(what, ...) tree:add_proto_expert_info(P.experts[what], (...):format(select(2, ...))) end
  if r.fault then expert_info("fault", "%s at byte %d: %s", r.field or "frame", r.fault.at, r.fault.reason) end
  if record.refused then expert_info("refused", "%s was refused", r.reading.name) end
  if r.trailing then expert_info("note", "bytes are left over") end
  if r.reading.unknown then expert_info("note", "this command is not known") end
  for _, note in ipairs(r.notes) do expert_info("note", "%s", note) end
  told[#told + 1] = summary(r)
end

function Protocol:dissect(tvb, pinfo, tree)
  local st, from = self:conversation(pinfo)
  local family, told = self.family, {}
  if not from and family == iggy then
    st.client = family.guess(self, tvb, pinfo, st) and pinfo.src_port or pinfo.dst_port
    from = pinfo.src_port == st.client and "client" or "server"
  end
  local least = family.least(self, tvb, st, from)
  if tvb:len() >= least and not st.known and not family.begins(self, tvb, st, from) then return 0 end
  pinfo.cols.protocol = self.title
  local function length(buffer, _, offset)
    local ok, size = pcall(family.length, self, buffer, offset, st, from)
    return ok and size or buffer:reported_len() - offset
  end
  local function one(buffer, info, root)
    local ok, wrong = pcall(self.frame, self, buffer, info, root, st, from, told)
    if not ok then root:add(self.proto, buffer()):add_proto_expert_info(self.experts.fault, "Lua Error: " .. tostring(wrong)) end
    return buffer:len()
  end
  pcall(dissect_tcp_pdus, tvb, tree, least, length, one) -- fails where the capture cut a segment short
  pinfo.cols.info = told[1] and table.concat(told, "; ") or "continuation data"
  pinfo.cols.info:fence()
  return tvb:len()
end

local taken = {} -- ports, by the protocol that is listed first

local function register(P)
  local proto, family, experts = P.proto, P.layouts and iggy or plain, {}
  local function field(name, title, kind, ...)
    P.added[name] = ProtoField.new(title, P.name .. "." .. name, kind, ...)
    table.insert(P.protos, P.added[name])
  end
  local function expert_field(name, title, group, severity)
    experts[name] = ProtoExpert.new(P.name .. "." .. name, title, expert.group[group], expert.severity[severity])
  end
  P.family, P.experts, P.added, P.conversations, P.records, P.rank = family, experts, {}, {}, {}, {}
  field("response_in", "Response in", ftypes.FRAMENUM, frametype.RESPONSE)
  field("response_to", "Response to", ftypes.FRAMENUM, frametype.REQUEST)
  field("response_time", "Response time", ftypes.RELATIVE_TIME)
  expert_field("fault", "The frame cannot be read", "MALFORMED", "ERROR")
  expert_field("refused", "The request was refused", "RESPONSE_CODE", "WARN")
  expert_field("note", "Something is odd", "PROTOCOL", "NOTE")
  proto.fields, proto.experts = P.protos, { experts.fault, experts.refused, experts.note }
  proto.prefs.secrets = Pref.bool("Show passwords and tokens", false, "in the tree and in columns")
  local values = { { 1, "told by what is said", 0 } }
  for rank, layout in ipairs(P.layouts or {}) do P.rank[layout], values[rank + 1] = rank, { rank + 1, layout, rank } end
  if P.layouts then proto.prefs.layout = Pref.enum("Layout", 0, "of all conversations; no frame states it", values, false) end
  function proto.init() P.conversations, P.records = {}, {} end
  function proto.dissector(tvb, pinfo, tree) return P:dissect(tvb, pinfo, tree) end
  for _, transport in ipairs({ "tcp", "tls" }) do
    local ports, sealed = DissectorTable.get(transport .. ".port"), transport == "tls"
    for port in pairs(P.ports) do
      if not taken[transport .. port] then ports:add(port, proto) end
      taken[transport .. port] = true
    end
    if not sealed then ports:add_for_decode_as(proto) end
    proto:register_heuristic(transport, function(tvb, pinfo, tree)
      local st = P:conversation(pinfo)
      local ok, found = pcall(family.guess, P, tvb, pinfo, st)
      if not (ok and found) and not st.sealed then return false end
      st.sealed = sealed
      if not sealed then pinfo.conversation = proto end -- within TLS that would be the dissector of what is sealed
      return P:dissect(tvb, pinfo, tree) > 0
    end)
  end
end
