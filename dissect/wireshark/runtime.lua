-- The runtime, written by hand. The tables that follow it are generated.

local MOST_VALUES = 100000 -- so many values of a frame are shown
local LARGEST, LARGEST_UNKNOWN = 0x4000000, 0x100000 -- no longer frame is believed
local SUMMED_UP, CUT = 5, 40 -- so many fields are in the info column, of so many bytes each

local stream_number = Field.new("tcp.stream")
local lost_segment = Field.new("tcp.analysis.lost_segment")

-- Values. A type has `read(r, name, at, stop, field, into)`: it adds nodes to `into` and returns where it ends.

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
    node.labelled = true
    r.odd = r.odd or not node.label
    if field.closed and not node.label then r.notes[#r.notes + 1] = name .. " " .. tostring(value) .. " is not known" end
  end
  r.scope[name] = value
  return node
end

local function number(size, get)
  local function value(tvb, at)
    local range = tvb(at, size)
    return range[get](range)
  end
  return {
    size = size,
    value = value,
    read = function(r, name, at, stop, field, into)
      need(at, size, stop)
      leaf(r, name, at, size, value(r.tvb, at), field, into)
      return at + size
    end,
  }
end

local uint8, uint16, uint32, uint64 = number(1, "uint"), number(2, "uint"), number(4, "uint"), number(8, "uint64")
local int8, int16, int32, int64 = number(1, "int"), number(2, "int"), number(4, "int"), number(8, "int64")
local uint16le, uint32le, uint64le = number(2, "le_uint"), number(4, "le_uint"), number(8, "le_uint64")
local int16le, int32le, int64le = number(2, "le_int"), number(4, "le_int"), number(8, "le_int64")
local float32, float64, float32le, float64le = number(4, "float"), number(8, "float"), number(4, "le_float"), number(8, "le_float")

local boolean = {
  read = function(r, name, at, stop, field, into)
    need(at, 1, stop)
    local value = r.tvb(at, 1):uint()
    leaf(r, name, at, 1, value ~= 0, field, into)
    if value > 1 then r.notes[#r.notes + 1] = name .. " is " .. value end
    return at + 1
  end,
}

local function raw(r, name, at, size, field, into, as)
  local value = as == "text" and size > 0 and r.tvb(at, size):string(ENC_UTF_8) or ""
  r.odd = r.odd or value:find("%c") ~= nil
  return leaf(r, name, at, size, value, field, into, as)
end

local function fixed(size, as)
  return {
    size = size,
    read = function(r, name, at, stop, field, into)
      need(at, size, stop)
      raw(r, name, at, size, field, into, as or "bytes")
      return at + size
    end,
  }
end

local function fixed_text(size) return fixed(size, "text") end

local uint128, uint128le, int128le = fixed(16), fixed(16), fixed(16)

local function remaining(as)
  return {
    read = function(r, name, at, stop, field, into)
      raw(r, name, at, stop - at, field, into, as)
      return stop
    end,
  }
end

local rest, rest_text = remaining("bytes"), remaining("text")

local function counted(r, length, at, stop) -- a length or count, and where what it counts begins
  if type(length) == "string" then return r.scope[length], at end
  need(at, length.size, stop)
  return length.value(r.tvb, at), at + length.size
end

local function region(r, length, at, stop)
  local size, first = counted(r, length, at, stop)
  if size < 0 or size > stop - first then fail(at, ("length says %d bytes, %d left"):format(size, stop - first)) end
  return first, first + size
end

local function prefixed(as)
  return function(length, null)
    return {
      read = function(r, name, at, stop, field, into)
        local size, first = counted(r, length, at, stop)
        if size == null then
          leaf(r, name, at, first - at, nil, field, into, "null")
          return first
        end
        local begin, finish = region(r, length, at, stop)
        raw(r, name, begin, size, field, into, as)
        return finish
      end,
    }
  end
end

local text, bytes = prefixed("text"), prefixed("bytes")

local function items(r, item, count, name, at, stop, field, into)
  local index = 0
  while count and index < count or not count and at < stop do
    local before = at
    at = item.read(r, name, at, stop, field, into, index)
    if at == before then fail(at, name .. " takes no bytes") end
    index = index + 1
  end
  return at
end

local function array(count, item)
  return {
    read = function(r, name, at, stop, field, into)
      local size, first = counted(r, count, at, stop)
      if size < 0 or size > stop - first then fail(at, ("count says %d, %d bytes left"):format(size, stop - first)) end
      return items(r, item, size, name, first, stop, field, into)
    end,
  }
end

local function repeated(item)
  return { read = function(r, name, at, stop, field, into) return items(r, item, nil, name, at, stop, field, into) end }
end

local read_entries

local function object(r, name, at, into, index, body) -- a node with nodes below it, which `body(children)` reads
  local node = add(r, into, { path = r.path .. name, name = name, at = at, size = 0, index = index, children = {} })
  local path, scope = r.path, r.scope
  r.path, r.scope = node.path .. ".", setmetatable({}, { __index = scope })
  local finish = body(node.children)
  r.path, r.scope, node.size = path, scope, finish - at
  return finish
end

local function group(entries)
  return {
    entries = entries,
    read = function(r, name, at, stop, field, into, index)
      return object(r, name, at, into, index, function(children) return read_entries(r, entries, at, stop, children) end)
    end,
  }
end

local function left_over(r, at, stop, into)
  if at < stop then
    raw(r, "trailing", at, stop - at, nil, into, "bytes")
    r.trailing = true
  end
  return stop
end

local function sized(length, content)
  return {
    read = function(r, name, at, stop, field, into)
      local first, finish = region(r, length, at, stop)
      local mark = #into
      at = content.read(r, name, first, finish, field, into)
      if at < finish then
        if not content.entries then fail(at, (finish - at) .. " bytes left over") end
        local node = into[mark + 1]
        local path = r.path
        r.path, node.size = node.path .. ".", finish - node.at
        left_over(r, at, finish, node.children)
        r.path = path
      end
      return finish
    end,
  }
end

local function bits(kind, parts)
  return {
    read = function(r, name, at, stop, field, into)
      need(at, kind.size, stop)
      local value = kind.value(r.tvb, at)
      return object(r, name, at, into, nil, function(children)
        for _, part in ipairs(parts) do leaf(r, part[1], at, kind.size, math.floor(value / part[2]) % part[3], part, children) end
        return at + kind.size
      end)
    end,
  }
end

local function optional(entries) return { optional = entries } end

local function choice(name, alternatives, otherwise)
  return { choose = function(r) return alternatives[r.scope[name]] or otherwise end }
end

function read_entries(r, entries, at, stop, into)
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
      r.field = r.path .. entry[1]
      at = kind.read(r, entry[1], at, stop, entry, into)
      for index = mark + 1, #into do into[index].secret = entry.secret end
    end
  end
  return at
end

-- What no table says

local nothing_known = { read = function(r, name, at) fail(at, "its kind is unknown") end }
local never = nothing_known

local sasl_username = { -- not on the wire: what the data of PLAIN says
  read = function(r, name, at, stop, field, into)
    local data = into[#into]
    if r.scope.mechanism == "PLAIN" and data and data.as == "bytes" and data.size > 0 then
      local user = r.tvb:range(data.at, data.size):bytes():raw():match("^%z([^%z]+)%z[^%z]+$")
      if user and not user:find("%c") then leaf(r, name, at, 0, user, field, into, "told") end
    end
    return at
  end,
}

local YEAR_2020, YEAR_2100 = 1577836800000000, 4102444800000000

local created_at = { -- of either byte order: the one that gives a time of this century
  read = function(r, name, at, stop, field, into)
    need(at, 8, stop)
    local function fits(value) return value:tonumber() >= YEAR_2020 and value:tonumber() < YEAR_2100 end
    local little, big = r.tvb(at, 8):le_uint64(), r.tvb(at, 8):uint64()
    leaf(r, name, at, 8, fits(big) and not fits(little) and big or little, field, into)
    return at + 8
  end,
}

local permissions = { -- rights, and flags that say whether those of another stream or topic follow
  read = function(r, name, at, stop, field, into)
    local function more()
      need(at, 1, stop)
      at = at + 1
      return r.tvb(at - 1, 1):uint() == 1
    end
    return object(r, name, at, into, nil, function(children)
      at = read_entries(r, r.P.permissions.global, at, stop, children)
      local stream, streams = more(), 0
      while stream do
        at = object(r, "streams", at, children, streams, function(below)
          at = read_entries(r, r.P.permissions.stream, at, stop, below)
          local topic, topics = more(), 0
          while topic do
            local function one(rights) return read_entries(r, r.P.permissions.topic, at, stop, rights) end
            at, topics = object(r, "topics", at, below, topics, one), topics + 1
            topic = more()
          end
          return at
        end)
        stream, streams = more(), streams + 1
      end
      return at
    end)
  end,
}

local function try(r, into, ...) -- whether what is called reads; if not, all is as before
  local mark, path, scope = #into, r.path, r.scope
  if pcall(...) then return true end
  r.path, r.scope = path, scope
  while #into > mark do table.remove(into) end
  return false
end

local function body(r, name, at, size, into) return raw(r, name, at, size, nil, into, "bytes") end

local function counted_offset(r, at, first, index, into)
  if first then leaf(r, "offset", at, 0, first + index, nil, into, "told") end
end

local function tracking(r, name, at, stop, snapshot, into)
  local index = 0
  while at < stop do
    at = object(r, name, at, into, index, function(children)
      at = uint8.read(r, "type", at, stop, { labels = r.P.tracking_types }, children)
      local label = children[1].label or fail(at, "no list of tracking blocks")
      at = text(uint8).read(r, "id", at, stop, nil, children)
      if label == "sequence" and snapshot then at = uint64.read(r, "chunk_id", at, stop, nil, children) end
      return (label == "timestamp" and int64 or uint64).read(r, label, at, stop, nil, children)
    end)
    index = index + 1
  end
end

local function sub_batch(r, form, at, stop, first, skipped, into)
  local flags = r.tvb(at, 1):uint()
  local compression = math.floor(flags / 16) % 8
  leaf(r, "compression", at, 1, compression, { labels = r.P.compressions }, into)
  leaf(r, "reserved", at, 1, flags % 16, nil, into)
  at = read_entries(r, form.sub_batch, at + 1, stop, into)
  local size, records = r.scope.size, r.scope.num_records
  if size > stop - at then fail(at, ("size says %d bytes, %d left"):format(size, stop - at)) end
  stop = at + size
  if compression > 0 then
    body(r, "body", at, size, into)
    return stop, records
  end
  for index = 0, records - 1 do
    at = object(r, "messages", at, into, index, function(children)
      counted_offset(r, at, first, skipped + index, children)
      at = uint32.read(r, "size", at, stop, nil, children)
      need(at, r.scope.size, stop)
      body(r, "body", at, r.scope.size, children)
      return at + r.scope.size
    end)
  end
  return left_over(r, at, stop, into), records
end

local function message(r, form, at, stop, first, skipped, kind, into) -- an entry; returns its end and its records
  need(at, 4, stop)
  local size = r.tvb(at, 4):uint()
  if size >= 0x80000000 then return sub_batch(r, form, at, stop, first, skipped, into) end
  at = uint32.read(r, "size", at, stop, nil, into)
  need(at, size, stop)
  if kind == 0 or not try(r, into, tracking, r, "tracking", at, at + size, kind == 2, into) then body(r, "body", at, size, into) end
  return at + size, 1
end

local function published_as(filtered)
  return {
    read = function(r, name, at, stop, field, into)
      need(at, 4, stop)
      local count, index = r.tvb(at, 4):int(), 0
      at = at + 4
      while at < stop do
        at = object(r, name, at, into, index, function(children)
          at = uint64.read(r, "publishing_id", at, stop, nil, children)
          if filtered then at = text(int16, -1).read(r, "filter_value", at, stop, nil, children) end
          return (message(r, r.P.forms[1], at, stop, nil, 0, 0, children))
        end)
        index = index + 1
      end
      if index ~= count then r.notes[#r.notes + 1] = ("count says %d messages, %d are there"):format(count, index) end
      return at
    end,
  }
end

local published, published_filtered = published_as(false), published_as(true)

local chunk = {
  read = function(r, name, at, stop, field, into)
    local form = r.P.forms[1]
    for _, other in ipairs(r.P.forms) do -- the draft has two: its data fill the frame in one of them
      local size = other.size
      if #r.P.forms > 1 and stop - at >= size and r.tvb(at + size - 4, 4):uint() == stop - at - size then form = other end
    end
    return object(r, name, at, into, nil, function(children)
      at = read_entries(r, form.header, at, stop, children)
      local head = r.scope
      local first, finish, skipped = head.chunk_first_offset, math.min(stop, at + head.data_length), 0
      if head.data_length > stop - at then r.notes[#r.notes + 1] = "the chunk is longer than its frame" end
      for index = 0, head.num_entries - 1 do
        at = object(r, "entries", at, children, index, function(below)
          counted_offset(r, at, first, skipped, below)
          local after, records = message(r, form, at, finish, first, skipped, head.chunk_type or 0, below)
          skipped = skipped + records
          return after
        end)
      end
      at = left_over(r, at, finish, children)
      local trailer = head.trailer_length or 0
      if trailer > 0 and stop - at >= trailer then
        if not try(r, children, tracking, r, "trailer", at, at + trailer, false, children) then
          body(r, "trailer_data", at, trailer, children)
        end
        at = at + trailer
      end
      return at
    end)
  end,
}

local function packed_version(value)
  return ("%d.%d.%d"):format(math.floor(value / 0x100000), math.floor(value / 0x400) % 0x400, value % 0x400)
end

local function status_name(value, r)
  local names = r.P.statuses[value] or {}
  for rank = r.P.rank[r.layout or r.P.layouts[#r.P.layouts]], 1, -1 do
    local name = names[r.P.layouts[rank]]
    if name then return name ~= "" and name or nil end
  end
end

-- A frame: read as lists of entries one behind the other

local function read_frame(P, tvb, reading)
  local r = { P = P, tvb = tvb, path = "", scope = {}, count = 0, notes = {}, nodes = {}, reading = reading, layout = reading.layout }
  r.top, r.head = r.scope, #reading.lists[1]
  local at, stop = 0, tvb:len()
  local ok, wrong = pcall(function()
    for _, entries in ipairs(reading.lists) do at = read_entries(r, entries, at, stop, r.nodes) end
    left_over(r, at, stop, r.nodes)
  end)
  if not ok and type(wrong) ~= "table" then error(wrong, 0) end
  r.fault = not ok and wrong or stop < tvb:reported_len() and { at = stop, reason = "cut short by the capture" } or nil
  r.sound = not r.fault and not r.trailing
  return r
end

local function best_of(P, tvb, readings) -- the first reading without a flaw, else the first that fills the frame, else the furthest
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

local function escaped(value)
  if #value > CUT then value = value:sub(1, CUT):gsub("[\128-\255]*$", "") .. "..." end
  return (value:gsub("[%c\127]", function(one) return ("\\x%02x"):format(one:byte()) end))
end

local AS = {
  uint64 = function(value) return type(value) == "number" and UInt64.new(value) or value end,
  int64 = function(value) return type(value) == "number" and Int64.new(value) or Int64.new(value:lower(), value:higher()) end,
  string = function(value) return tostring(value) end,
}

local function show(P, r, tree, nodes)
  for _, node in ipairs(nodes) do
    local field = P.fields[node.path] or P.fields.trailing
    local range, value, item = r.tvb(node.at, node.size), node.value, nil
    if node.secret and not P.proto.prefs.secrets and node.as ~= "null" then
      item = tree:add(field.proto, range, ("<redacted %d bytes>"):format(node.size))
    elseif node.children then
      item = field.kind == "none" and tree:add(field.proto, range) or tree:add(field.proto, range, "")
      if node.index then item:append_text("[" .. node.index .. "]") end
      show(P, r, item, node.children)
    elseif node.as == "null" then
      item = field.kind == "string" and tree:add(field.proto, range, "") or tree:add(field.proto, range)
      item:append_text(" (null)")
    elseif field.kind == "bytes" then
      item = tree:add(field.proto, range)
    else
      if node.as == "bytes" then value = node.size > 0 and tostring(range:bytes()):lower() or "" end
      item = tree:add(field.proto, range, AS[field.kind] and AS[field.kind](value) or value)
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
  if node.secret then return nil end
  if node.children then
    for _, below in ipairs(node.children) do
      if below.name == "value" then return told(below) end
    end
    return nil
  end
  if node.label then return node.label end
  if node.value == nil or node.as == "bytes" then return nil end
  return escaped(tostring(node.value))
end

local function summary(r, m)
  local parts, lists = { m.name }, {}
  if m.kind ~= "one_way" then parts[2] = m.kind == "request" and ">" or "<" end
  for index = r.head + 1, #r.nodes do
    local node = r.nodes[index]
    if node.index then
      if not lists[node.name] then
        lists[node.name] = #parts + 1
        parts[#parts + 1] = ""
      end
      parts[lists[node.name]] = ("%s: %d"):format(node.name, node.index + 1)
    else
      local value = told(node)
      if value and value ~= "" then parts[#parts + 1] = node.labelled and value or node.name .. "=" .. value end
    end
    if #parts > SUMMED_UP + 2 then break end
  end
  return table.concat(parts, " ")
end

-- Conversations

local Protocol = {}
Protocol.__index = Protocol

local function protocol(name, title, ports)
  local P = setmetatable({ name = name, ports = {}, fields = {}, protos = {}, messages = {}, forms = {}, commands = {} }, Protocol)
  P.proto = Proto(name, title)
  for _, port in ipairs(ports) do P.ports[port] = true end
  P.port_range = table.concat(ports, ",")
  return P
end

function Protocol:field(path, kind, values, note)
  local title = path:gsub("^.*%.", ""):gsub("_", " "):gsub("^%l", string.upper)
  local types = { none = ftypes.NONE, string = ftypes.STRING, bytes = ftypes.BYTES, bool = ftypes.BOOLEAN, double = ftypes.DOUBLE }
  local abbreviation = self.name .. "." .. path
  local made
  if kind:match("int") then
    made = ProtoField.new(title, abbreviation, ftypes[kind:upper()], values, base.DEC, nil, note)
  else
    made = ProtoField.new(title, abbreviation, types[kind], nil, base.NONE, nil, note)
  end
  self.fields[path] = { proto = made, kind = kind, values = values }
  self.protos[#self.protos + 1] = made
end

function Protocol:form(header, parts)
  local size = 0
  for _, entry in ipairs(header) do size = size + entry[2].size end
  self.forms[#self.forms + 1] = { header = header, sub_batch = parts, size = size }
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

function Protocol:conversation(pinfo)
  local number = stream_number()
  number = number and number.value or 0
  local st = self.streams[number] or { open = {}, queue = {}, long = {}, port = {} }
  self.streams[number] = st
  if not st.client then
    local other = self.ports[pinfo.dst_port] and pinfo.src_port or self.ports[pinfo.src_port] and pinfo.dst_port
    st.client = other or nil
  end
  return st, st.client and (pinfo.src_port == st.client and "client" or "server")
end

-- Protocols whose frames begin with a size and with the numbers of a command

local plain = {}
local UNKNOWN = { { "body", rest, secret = false } }
local HIDDEN = { { "body", rest, secret = true } }
local BEFORE_OPEN = { PeerProperties = true, SaslHandshake = true, SaslAuthenticate = true, Heartbeat = true, Close = true }

function plain.least(P) return P.head_size end

function plain.known(P, tvb, at) -- the messages that the frame may be, and its length
  local key, length = "", nil
  for _, entry in ipairs(P.head) do
    local value = entry[2].value(tvb, at)
    at, length = at + entry[2].size, length or value + entry[2].size
    if P.matched[entry[1]] then key = key .. value .. "/" end
  end
  return P.messages[key], length
end

function plain.length(P, tvb, at)
  local known, length = plain.known(P, tvb, at)
  return length >= P.head_size and length <= (known and LARGEST or LARGEST_UNKNOWN) and length or nil
end

function plain.begins(P, tvb) return plain.known(P, tvb, 0) and plain.length(P, tvb, 0) end

function plain.readings(P, tvb, from)
  local known, readings = plain.known(P, tvb, 0), {}
  for _, one in ipairs(known or {}) do
    if not from or not one.side or one.side == from then readings[#readings + 1] = one end
  end
  if #readings > 0 then return readings end
  return known or { { name = "unknown", kind = "one_way", lists = { P.head, UNKNOWN }, unknown = true } }
end

function plain.decode(P, tvb, st, from, record)
  local r = best_of(P, tvb, plain.readings(P, tvb, from))
  local name, top = r.reading.name, r.top
  local handshake = st.began and not st.accepted and not BEFORE_OPEN[name] and name ~= "Tune" and name ~= "Open"
  if from ~= "server" and (handshake or not r.sound and not (st.accepted or record.open) or not r.sound and r.secret) then
    r = read_frame(P, tvb, { name = name, kind = r.reading.kind, lists = { P.head, HIDDEN } }) -- it may hold a password
  elseif r.sound then
    record.open = true
  end
  r.id = top.correlation_id or top.id or top.subscription_id or ""
  return r
end

local function ids_of(nodes, found)
  for _, node in ipairs(nodes) do
    if node.name == "publishing_id" or node.name == "publishing_ids" then found[#found + 1] = tostring(node.value) end
    if node.children then ids_of(node.children, found) end
  end
  return found
end

local function answered(record, asked)
  if asked then record.request, asked.response = asked, asked.response or record end
end

function plain.follow(P, st, r, record, pinfo)
  local name, kind, side = r.reading.name, r.reading.kind, r.reading.side
  if r.sound and side and not st.client then st.client = side == "client" and pinfo.src_port or pinfo.dst_port end
  if not r.sound then return end
  local status = nil
  for index = r.head + 1, #r.nodes do status = status or r.nodes[index].labelled and r.nodes[index] end
  record.refused = kind == "response" and (name == "PublishError" or status and not (P.accepted or { [0] = true })[status.value])
  if name == "SaslHandshake" and kind == "request" then st.began = true end
  local accepts = name == "SaslAuthenticate" and kind == "response" and not record.refused and status and status.label == "OK"
  if accepts or not BEFORE_OPEN[name] then st.accepted = true end
  local asks = kind ~= "response"
  local port, ids = asks and pinfo.src_port or pinfo.dst_port, ids_of(r.nodes, {})
  if #ids > 0 and name:match("^Publish") then
    for _, id in ipairs(ids) do
      local key = ("%d/Publish/%s/%s"):format(port, r.top.publisher_id or "", id)
      if asks then st.open[key] = record else answered(record, st.open[key]) st.open[key] = nil end
    end
  elseif asks then
    st.open[port .. "/" .. name .. "/" .. r.id] = record
  else
    for _, one in ipairs(plain.readings(P, r.tvb)) do -- a draft answers one command with the key of another
      local key = port .. "/" .. one.name .. "/" .. r.id
      if st.open[key] and not record.request then answered(record, st.open[key]) st.open[key] = nil end
    end
  end
end

function plain.guess(P, tvb, pinfo, st) -- whether frames without a flaw fill these bytes
  local at, strong, length = 0, false, 0
  while tvb:len() - at >= P.head_size do
    local known
    known, length = plain.known(P, tvb, at)
    if not known or length < P.head_size or length > LARGEST then return false end
    if length > tvb:len() - at then break end
    local r = best_of(P, tvb(at, length):tvb(), known)
    if not r.sound or #r.notes > 0 or r.odd then return false end
    at, strong = at + length, strong or length >= 20
  end
  return strong
end

-- Apache Iggy: the layout is not in the frame, nor, mostly, what it answers

local iggy = {}
local HEADER, TOLD, REQUEST, REPLY, EVICTION, REGISTER, OTHERS = 256, 64, 5, 8, 13, 1, 2

function Protocol:command(code, name, ask, answer)
  self.commands[code] = { name = name, client = ask, server = answer }
end

local function at_layout(P, by_layout, layout) -- what holds from a layout on
  for rank = P.rank[layout], 1, -1 do
    local found = by_layout[P.layouts[rank]]
    if found then return found, P.layouts[rank] end
  end
end

local function is_long(tvb, st, from) -- whether a side has headers of 256 bytes, told by its first bytes
  if st.long[from] == nil and (from == "client" or st.long.client ~= false) then
    local told = from == "client" or tvb:len() >= TOLD or tvb(0, 4):uint() ~= 0
    local zero = tvb(0, 4):uint() == 0
    if from ~= "client" and zero and tvb:len() >= TOLD then
      local kind = tvb(60, 1):uint()
      zero = tvb(48, 4):le_uint() >= HEADER and (kind == REPLY or kind == EVICTION)
    end
    if not told then return false end
    st.long[from] = zero
  end
  return st.long[from] or false
end

function iggy.least(P, tvb, st, from) return tvb:len() >= 8 and is_long(tvb, st, from) and TOLD or 8 end

function iggy.length(P, tvb, at, st, from)
  local first, second = tvb(at, 4):le_uint(), tvb(at + 4, 4):le_uint()
  if is_long(tvb, st, from) then
    local size, kind = tvb(at + 48, 4):le_uint(), tvb(at + 60, 1):uint()
    return size >= HEADER and size <= LARGEST and kind > 0 and kind < 30 and size or nil
  elseif from == "client" then
    return first >= 4 and first <= (P.commands[second] and LARGEST or LARGEST_UNKNOWN) and first + 4 or nil
  end
  return (first == 0 or P.statuses[first] and second < 0x10000) and second <= LARGEST and second + 8 or nil
end

function iggy.begins(P, tvb, st, from)
  local length = iggy.length(P, tvb, 0, st, from)
  return length and (from == "server" or st.long[from] or P.commands[tvb(4, 4):le_uint()])
end

local function operation_and_code(P, tvb)
  local operation = tvb(176, 1):uint()
  if operation == REGISTER then return operation, 40 end
  if operation ~= OTHERS then return operation, P.operations[operation] end
  for _, at in ipairs({ 204, 196, 200 }) do
    if tvb(at, 4):le_uint() > 0 then return operation, tvb(at, 4):le_uint() end
  end
  return operation
end

function iggy.meet(P, tvb, st, from, record) -- on the first pass: what a frame asks for, or what it answers
  local long = st.long[from]
  if from == "client" then
    if long and tvb:len() >= HEADER then
      record.operation, record.code = operation_and_code(P, tvb)
      record.client, record.id = tostring(tvb(128, 16):bytes()), tostring(tvb(168, 8):bytes())
    elseif not long then
      record.code = tvb(4, 4):le_uint()
      local bare = tvb:len() == 8
      if record.code == 32 and not bare or record.code == 33 and bare and st.candidates[1] == "L0" then record.code = -record.code end
    end
    if not long or tvb(60, 1):uint() == REQUEST then st.queue[#st.queue + 1] = record end
    return
  end
  local which = st.queue[1] and 1
  if long and tvb:len() >= HEADER and tvb(60, 1):uint() == REPLY then
    record.operation = tvb(208, 1):uint()
    local client, id = tostring(tvb(160, 16):bytes()), tostring(tvb(200, 8):bytes())
    for index = #st.queue, 1, -1 do
      if st.queue[index].client == client and st.queue[index].id == id then which = index end
    end
  end
  if which and not st.mismatch then
    local asked = table.remove(st.queue, which)
    record.code, record.operation = asked.code, record.operation or asked.operation
    answered(record, asked)
  end
end

function iggy.table_of(P, tvb, st, from, record, layout) -- how a layout reads a frame: a key, and the heads and forms behind them
  local command, long = P.commands[record.code], st.long[from]
  local found, since = nil, nil
  if command and at_layout(P, command.client, layout) and (record.code >= 0 or layout == "L0") then
    found, since = at_layout(P, command[from], layout)
  end
  local head, more = from == "client" and "ask" or "answer", nil
  if not long and from == "server" and tvb(0, 4):le_uint() > 0 then
    return "error " .. layout, { P.error }, { {} }
  elseif long then
    local kind = tvb:len() > 60 and tvb(60, 1):uint() or 0
    local v1 = layout == "V1"
    if kind == EVICTION and from == "server" then return "eviction", { P.eviction }, { {} } end
    if kind ~= (from == "client" and REQUEST or REPLY) then return "other", { P.other }, nil end
    if from == "client" then
      local early = v1 and tvb:len() >= 208 and record.operation == OTHERS and tvb(204, 4):uint() == 0 and tvb(200, 4):uint() > 0
      head = "request_" .. (early and "V1a" or v1 and "V1" or "V2")
      if record.operation == REGISTER and found then
        local forms = {}
        for _, code in ipairs({ 40, 45 }) do
          for _, form in ipairs((at_layout(P, P.commands[code].client, layout))) do forms[#forms + 1] = form end
        end
        found = forms
      end
    else
      head = v1 and "reply_V1" or "reply_V2"
      local listed = P.listed[record.operation] or record.operation == REGISTER
      local failed = listed and tvb:len() >= HEADER + 4 and tvb(HEADER, 4):le_uint() > 0
      if tvb:len() >= 228 and tvb(v1 and 224 or 216, 4):le_uint() > 0 then return head .. " error " .. layout, { P[head] }, { {} } end
      if failed then return head .. " failed " .. layout, { P[head], P.results }, { {} } end
      if listed and (record.operation ~= REGISTER or tvb:len() > HEADER) then more = P.results end
    end
  end
  return head .. " " .. tostring(since) .. " " .. tostring(more), { P[head], more }, found
end

function iggy.reading(P, tvb, st, from, record, layout, heads, forms)
  local command = P.commands[record.code]
  local readings = {}
  for _, form in ipairs(forms or { HIDDEN }) do
    local lists = { heads[1], heads[2] or form, heads[2] and form }
    readings[#readings + 1] = { lists = lists, layout = layout, unknown = not forms }
  end
  local r = best_of(P, tvb, readings)
  r.reading.name = command and command.name or record.code and "unknown " .. record.code or "unknown"
  r.reading.kind = from == "client" and "request" or "response"
  return r
end

function iggy.layout(P, st)
  for _, layout in ipairs(st.candidates) do
    if layout == st.hint then return layout end
  end
  return st.candidates[#st.candidates]
end

function iggy.decode(P, tvb, st, from, record, fresh)
  local long = is_long(tvb, st, from)
  if not st.candidates then
    local chosen = P.layouts[P.proto.prefs.layout]
    st.candidates = chosen and { chosen } or {}
    for rank, layout in ipairs(P.layouts) do
      if not chosen and (rank > P.classic) == long then table.insert(st.candidates, layout) end
    end
  end
  st.mismatch = st.long.client ~= nil and st.long.server ~= nil and st.long.client ~= st.long.server
  if fresh then iggy.meet(P, tvb, st, from, record) end
  local found, keys = {}, {}
  for _, layout in ipairs(st.candidates) do
    local key, heads, forms = iggy.table_of(P, tvb, st, from, record, layout)
    if not found[key] then
      found[key] = { heads = heads, forms = forms, layouts = {}, last = layout }
      keys[#keys + 1] = key
    end
    found[key].layouts[#found[key].layouts + 1] = layout
    found[key].last = layout
  end
  local function read(one) return iggy.reading(P, tvb, st, from, record, one.last, one.heads, one.forms) end
  if fresh and #keys > 1 and tvb:len() == tvb:reported_len() and not (from == "server" and tvb:len() <= (long and HEADER or 8)) then
    local fitting, plausible = {}, {}
    for _, key in ipairs(keys) do
      local r = read(found[key])
      local fits = r.sound and not r.reading.unknown
      for _, layout in ipairs(fits and found[key].layouts or {}) do
        fitting[#fitting + 1] = layout
        if not r.odd then plausible[#plausible + 1] = layout end
      end
    end
    if #plausible > 0 then fitting = plausible end
    if #fitting > 0 then st.candidates = fitting end
  end
  local layout, r = iggy.layout(P, st), nil
  for _, key in ipairs(keys) do
    for _, one in ipairs(found[key].layouts) do
      if one == layout then r = read({ heads = found[key].heads, forms = found[key].forms, last = layout }) end
    end
  end
  if fresh then
    local top = r.top
    local stated = rawget(top, "version") or rawget(top, "sdk_version") or rawget(top, "server_version")
    local known = rawget(top, "server_version") and P.server_versions or P.client_versions
    if r.sound and type(stated) == "string" then st.hint = P.edges[stated] or known[stated:match("^%d+%.%d+") or ""] or st.hint end
  end
  record.refused = from == "server" and ((r.top.status or 0) ~= 0 or r.reading.lists[2] == P.results and r.top.index ~= nil)
  return r
end

function iggy.follow() end

function iggy.guess(P, tvb, pinfo, st) -- whether requests fill these bytes
  local at, strong = 0, false
  local trial = { long = {}, queue = {} }
  while tvb:len() - at >= iggy.least(P, tvb, trial, "client") do
    local length = iggy.length(P, tvb, at, trial, "client")
    if not length or length > tvb:len() - at then return false end
    local record = {}
    local one = tvb(at, length):tvb()
    local r = iggy.decode(P, one, trial, "client", record, true)
    if not r.sound or r.reading.unknown or r.odd then return false end
    at, strong = at + length, strong or length >= 16
  end
  if strong and at == tvb:len() then st.client = pinfo.src_port end
  return strong and at == tvb:len()
end

-- What Wireshark calls

function Protocol:show_pair(tree, record)
  local added = self.added
  if record.response then tree:add(added.response_in, record.response.number):set_generated() end
  if record.request then
    local seconds = record.time - record.request.time
    local whole = math.floor(seconds)
    tree:add(added.response_to, record.request.number):set_generated()
    tree:add(added.response_time, NSTime.new(whole, math.floor((seconds - whole) * 1e9 + 0.5))):set_generated()
  end
end

function Protocol:frame(tvb, pinfo, root, st, from, told)
  local P = self
  local tree = root:add(P.proto, tvb())
  local least = P.family.least(P, tvb, st, from)
  if tvb:len() < least or not P.family.length(P, tvb, 0, st, from) then
    tree:append_text(", continuation data")
    told[#told + 1] = "continuation data"
    return
  end
  local key = pinfo.number .. "/" .. tvb:offset() .. "/" .. tvb:reported_len()
  local record = P.records[key]
  local fresh = not record
  if fresh then
    record = { number = pinfo.number, time = pinfo.rel_ts }
    P.records[key] = record
    if lost_segment() then st.queue = {} end
  end
  local r = P.family.decode(P, tvb, st, from, record, fresh)
  if fresh then P.family.follow(P, st, r, record, pinfo) end
  st.known = st.known or r.sound
  local m = r.reading
  tree:append_text((", %s %s"):format(m.name, m.kind:gsub("_", "-")))
  show(P, r, tree, r.nodes)
  P:show_pair(tree, record)
  if r.fault then tree:add_proto_expert_info(P.experts.fault, ("%s at byte %d: %s"):format(r.field or "frame", r.fault.at, r.fault.reason)) end
  if record.refused then tree:add_proto_expert_info(P.experts.refused, m.name .. " was refused") end
  if r.trailing then tree:add_proto_expert_info(P.experts.note, "bytes are left over") end
  if m.unknown then tree:add_proto_expert_info(P.experts.note, "this command is not known") end
  for _, note in ipairs(r.notes) do tree:add_proto_expert_info(P.experts.note, note) end
  told[#told + 1] = summary(r, m)
end

function Protocol:dissect(tvb, pinfo, tree)
  local st, from = self:conversation(pinfo)
  if not from and self.family == iggy then
    st.client = iggy.guess(self, tvb, pinfo, st) and pinfo.src_port or pinfo.dst_port
    from = pinfo.src_port == st.client and "client" or "server"
  end
  local least = self.family.least(self, tvb, st, from)
  if tvb:len() >= least and not st.known and not self.family.begins(self, tvb, st, from) then return 0 end
  pinfo.cols.protocol = self.title
  local told = {}
  local function length(buffer, _, offset)
    local ok, size = pcall(self.family.length, self, buffer, offset, st, from)
    return ok and size or buffer:reported_len() - offset
  end
  local function one(buffer, info, root)
    local ok, wrong = pcall(self.frame, self, buffer, info, root, st, from, told)
    if not ok then root:add_proto_expert_info(self.experts.internal, "Lua Error: " .. tostring(wrong)) end
    return buffer:len()
  end
  pcall(dissect_tcp_pdus, tvb, tree, least, length, one) -- fails where the capture cut a segment short
  if #told > 0 then
    pinfo.cols.info = table.concat(told, "; ")
    pinfo.cols.info:fence()
  end
  return tvb:len()
end

local taken = {} -- ports, by the protocol that is listed first

local function register(P)
  local proto, added = P.proto, {}
  P.family, P.title = P.layouts and iggy or plain, proto.description
  local function new(name, kind, title, ...)
    added[name] = ProtoField.new(title, P.name .. "." .. name, kind, ...)
    P.protos[#P.protos + 1] = added[name]
  end
  new("response_in", ftypes.FRAMENUM, "Response in", frametype.RESPONSE)
  new("response_to", ftypes.FRAMENUM, "Response to", frametype.REQUEST)
  new("response_time", ftypes.RELATIVE_TIME, "Response time")
  if not P.fields.trailing then P:field("trailing", "bytes", nil, "left over behind the fields") end
  P.added, proto.fields = added, P.protos
  local function new_expert(name, title, group, severity) return ProtoExpert.new(P.name .. "." .. name, title, group, severity) end
  P.experts = {
    fault = new_expert("fault", "The frame cannot be read", expert.group.MALFORMED, expert.severity.ERROR),
    refused = new_expert("refused", "The request was refused", expert.group.RESPONSE_CODE, expert.severity.WARN),
    note = new_expert("note", "Something is odd", expert.group.PROTOCOL, expert.severity.NOTE),
    internal = new_expert("internal", "Internal error", expert.group.MALFORMED, expert.severity.ERROR),
  }
  proto.experts = { P.experts.fault, P.experts.refused, P.experts.note, P.experts.internal }
  proto.prefs.secrets = Pref.bool("Show passwords and tokens", false, "in the tree, in columns and in filters")
  if P.layouts then
    local values = { { 1, "by what is said", 0 } }
    P.rank = {}
    for rank, layout in ipairs(P.layouts) do
      P.rank[layout], values[rank + 1] = rank, { rank + 1, layout, rank }
    end
    proto.prefs.layout = Pref.enum("Layout", 0, "of all conversations; no frame states it", values, false)
  end
  P.streams, P.records = {}, {}
  function proto.init() P.streams, P.records = {}, {} end
  function proto.dissector(tvb, pinfo, tree) return P:dissect(tvb, pinfo, tree) end
  local function heuristic(tvb, pinfo, tree)
    local st = P:conversation(pinfo)
    local ok, found = pcall(P.family.guess, P, tvb, pinfo, st)
    if not (ok and found) then return false end
    pinfo.conversation = proto
    return P:dissect(tvb, pinfo, tree) > 0
  end
  for _, transport in ipairs({ "tcp", "tls" }) do
    local ports = DissectorTable.get(transport .. ".port")
    for port in pairs(P.ports) do
      if not taken[port .. transport] then ports:add(port, proto) end
      taken[port .. transport] = true
    end
    if transport == "tcp" then ports:add_for_decode_as(proto) end
    proto:register_heuristic(transport, heuristic)
  end
end
