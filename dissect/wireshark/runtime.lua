-- What no table says, written by hand. What follows is generated from the tables.

local LARGEST, LARGEST_UNKNOWN = 0x4000000, 0x100000 -- no longer frame is believed
local SUMMED_UP, CUT = 7, 40 -- so many parts are in the info column, of so many bytes each
local lost_segment = Field.new("tcp.analysis.lost_segment")

local function never(r, name, at) fail(at, "its kind is not known") end

local function sasl_username(r, name, at, stop, field, into) -- not on the wire: what the data of PLAIN say
  local data = into[#into]
  local plain = r.scope.mechanism == "PLAIN" and data.size > 0 and data.as == "bytes" and r.tvb(data.at, data.size):bytes():raw()
  local user = plain and plain:match("^%z([^%z%c]+)%z[^%z]+$")
  if user then leaf(r, name, at, 0, user, field, into, "told") end
  return at
end

local function created_at(r, name, at, stop, field, into) -- of either byte order: the one that gives a time from 2020 to 2100
  local finish, little, big = need(at, 8, stop), r.tvb(at, 8):le_uint64(), r.tvb(at, 8):uint64()
  local function fits(value) return value:tonumber() >= 1577836800000000 and value:tonumber() < 4102444800000000 end
  leaf(r, name, at, 8, fits(big) and not fits(little) and big or little, field, into)
  return finish
end

local function permissions(r, name, at, stop, field, into) -- rights, and flags that say whether those of another stream or topic follow
  local function level(depth, children)
    local rights = r.P.permissions[depth]
    at = read_entries(r, rights, at, stop, children)
    for index = 0, rights.list and stop or -1 do
      at = need(at, 1, stop)
      if r.tvb(at - 1, 1):uint() ~= 1 then break end
      object(r, rights.list, at, children, index, function(below) return level(depth + 1, below) end)
    end
    return at
  end
  return object(r, name, at, into, nil, function(children) return level(1, children) end)
end

local function body(r, name, at, size, into)
  local finish = need(at, size, r.tvb:len())
  raw(r, name, at, size, nil, into, "bytes")
  return finish
end

local function tracking(r, into, name, at, stop, snapshot) -- whether these bytes are tracking blocks; if not, all is as before
  local mark, path, scope, index = #into, r.path, r.scope, 0
  local ok = pcall(function()
    while at < stop do
      at, index = object(r, name, at, into, index, function(children)
        at = uint8(r, "type", at, stop, { labels = r.P.tracking_types }, children)
        local label = children[1].label or fail(at, "no tracking block")
        at = text(uint8)(r, "id", at, stop, nil, children)
        if label == "sequence" and snapshot then at = uint64(r, "chunk_id", at, stop, nil, children) end
        return (label == "timestamp" and int64 or uint64)(r, label, at, stop, nil, children)
      end), index + 1
    end
  end)
  if not ok then r.path, r.scope = path, scope end
  while not ok and #into > mark do table.remove(into) end
  return ok
end

local function message(r, form, at, stop, first, kind, into) -- an entry: its end, and how many messages it has; `first`: its offset
  local function offset(index, children) return first and leaf(r, "offset", at, 0, first + index, nil, children, "told") end
  need(at, 4, stop)
  offset(0, into)
  local flags = r.tvb(at, 1):uint()
  if flags < 128 then
    at = uint32(r, "size", at, stop, nil, into)
    local finish = need(at, r.scope.size, stop)
    if kind == 0 or not tracking(r, into, "tracking", at, finish, kind == 2) then body(r, "body", at, finish - at, into) end
    return finish, 1
  end
  local compression = math.floor(flags / 16) % 8
  leaf(r, "compression", at, 1, compression, { labels = r.P.compressions }, into)
  leaf(r, "reserved", at, 1, flags % 16, nil, into)
  at = read_entries(r, form.sub_batch, at + 1, stop, into)
  local finish, records = need(at, r.scope.size, stop), r.scope.num_records
  if compression > 0 then return body(r, "body", at, finish - at, into), records end
  for index = 0, records - 1 do
    at = object(r, "messages", at, into, index, function(children)
      offset(index, children)
      at = uint32(r, "size", at, finish, nil, children)
      need(at, r.scope.size, finish)
      return body(r, "body", at, r.scope.size, children)
    end)
  end
  return left_over(r, at, finish, into), records
end

local function published_as(filtered)
  return function(r, name, at, stop, field, into)
    local first, index = need(at, 4, stop), 0
    local count = r.tvb(at, 4):int()
    at = first
    while at < stop do
      at, index = object(r, name, at, into, index, function(children)
        at = uint64(r, "publishing_id", at, stop, nil, children)
        if filtered then at = text(int16, -1)(r, "filter_value", at, stop, nil, children) end
        return (message(r, r.P.forms[1], at, stop, nil, 0, children))
      end), index + 1
    end
    if index ~= count then note(r, "count says %d messages, %d are there", count, index) end
    return at
  end
end

local published, published_filtered = published_as(false), published_as(true)

local function chunk(r, name, at, stop, field, into)
  local form = r.P.forms[1]
  for _, other in ipairs(r.P.forms) do -- where there are several, the one in which its data fill the frame
    local size = other.size
    if r.P.forms[2] and stop - at >= size and r.tvb(at + size - 4, 4):uint() == stop - at - size then form = other end
  end
  return object(r, name, at, into, nil, function(children)
    at = read_entries(r, form.header, at, stop, children)
    local head, records = r.scope, nil
    local offset, trailer, finish = head.chunk_first_offset, head.trailer_length or 0, need(at, head.data_length, stop)
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
    return tracking(r, children, "trailer", at, at + trailer, false) and at + trailer or body(r, "trailer_data", at, trailer, children)
  end)
end

local function group_name(value) -- a group of replicas: the metadata, or stream, topic and partition
  local high, low
  if typeof(value) == "UInt64" then high, low = value:higher(), value:lower() else high, low = math.floor(value / 0x100000000), value % 0x100000000 end
  if high == 0x80000000 and low == 0 then return "metadata" end
  return ("%d/%d/%d"):format(high, math.floor(low / 0x100000), low % 0x100000)
end

local function packed_version(one) return ("%d.%d.%d"):format(math.floor(one / 0x100000), math.floor(one / 0x400) % 0x400, one % 0x400) end

local function since(P, by_layout, layout) -- what holds from a layout on, and which layout that is
  for rank = P.rank[layout], 1, -1 do
    local found = by_layout[P.layouts[rank]]
    if found then return found, P.layouts[rank] end
  end
end

local function status_name(value, r)
  local name = since(r.P, r.P.statuses[value] or {}, r.reading.layout)
  return name ~= "" and name or nil
end

-- A frame, as lists of entries one behind the other

local function read_frame(P, tvb, reading)
  local r = { P = P, tvb = tvb, path = "", scope = {}, count = 0, notes = {}, nodes = {}, reading = reading }
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
    local r = rank ~= -2 and read_frame(P, tvb, reading)
    local own = not r and 9 or r.sound and (#r.notes == 0 and -2 or -1) or r.fault and 1 + 1 / (1 + r.fault.at) or 0
    if not best or own < rank then best, rank = r, own end
  end
  return best
end

-- The tree and the info column

local AS = {
  uint64 = function(value) return type(value) == "number" and UInt64.new(value) or value end,
  int64 = function(value)
    if type(value) == "number" then return Int64.new(value) end
    return typeof(value) == "UInt64" and Int64.new(value:lower(), value:higher()) or value
  end,
  string = function(value, node, range) return node.as == "bytes" and node.size > 0 and tostring(range:bytes()):lower() or tostring(value) end,
}

local function show(P, r, tree, nodes)
  for _, node in ipairs(nodes) do
    local field = P.fields[node.path] or P.fields.trailing
    local range, as, item = r.tvb(node.at, node.size), AS[field.kind], nil
    if node.secret and node.as ~= "null" and not P.proto.prefs.secrets then
      item = tree:add(field.proto, range, ("<redacted %d bytes>"):format(node.size))
    elseif node.children or node.as == "null" then
      item = field.kind == "string" and tree:add(field.proto, range, "") or tree:add(field.proto, range)
      item:append_text(node.index and "[" .. node.index .. "]" or node.as and " (null)" or "")
      show(P, r, item, node.children or {})
    elseif field.kind == "bytes" then
      item = tree:add(field.proto, range)
    else
      item = tree:add(field.proto, range, as and as(node.value, node, range) or node.value)
    end
    if node.as == "told" then item:set_generated() end
    local label = node.label and not node.secret and P.fields[node.path .. "_label"]
    if label then tree:add(label.proto, range, node.label):set_hidden() end
    if label and not field.values then item:append_text(" (" .. node.label .. ")") end
  end
end

local function told(node) -- a value in the info column
  if node.secret or node.as == "bytes" or node.as == "null" then return nil end
  for _, below in ipairs(not node.index and node.children or {}) do
    if below.name == "value" then return told(below) end
  end
  local value = node.label or not node.children and tostring(node.value) or ""
  if #value > CUT then value = value:sub(1, CUT):gsub("[\128-\255]*$", "") .. "..." end
  return value ~= "" and value:gsub("[%c\127]", function(one) return ("\\x%02x"):format(one:byte()) end) or nil
end

local function summary(r, way)
  local parts, lists = { r.reading.name, way, r.refusal }, {}
  for index = r.head + 1, #r.nodes do
    local node = r.nodes[index]
    local value = told(node)
    local place = node.index and lists[node.name] or #parts + 1
    if value and parts[place] then
      parts[place] = parts[place]:sub(-3) ~= "..." and parts[place] .. (#parts[place] < CUT and "," .. value or "...") or parts[place]
    elseif value then
      parts[place] = node.labelled and value or node.name .. "=" .. value
    elseif node.index then
      parts[place] = ("%s: %d"):format(node.name, node.index + 1)
    end
    if node.index then lists[node.name] = place end
    if #parts > SUMMED_UP then break end
  end
  return table.concat(parts, " ")
end

-- Protocols, and their conversations: those of the same addresses and ports are one

local Protocol = {}
Protocol.__index = Protocol
local TYPES = { none = ftypes.NONE, string = ftypes.STRING, bytes = ftypes.BYTES, bool = ftypes.BOOLEAN, double = ftypes.DOUBLE }

local function protocol(name, title, ports, websocket)
  local P = { name = name, title = title, proto = Proto(name, title), ports = {}, fields = {}, protos = {}, messages = {}, forms = {}, commands = {} }
  P.replicas, P.prepared = {}, {}
  for _, port in ipairs(ports) do P.ports[port] = "tcp" end
  for _, port in ipairs(websocket) do P.ports[port] = "ws" end
  return setmetatable(P, Protocol)
end

function Protocol:field(path, kind, values, said)
  local title = path:gsub("^.*%.", ""):gsub("_", " "):gsub("^%l", string.upper)
  local shown = kind:find("int") and base.DEC or base.NONE
  local made = ProtoField.new(title, self.name .. "." .. path, TYPES[kind] or ftypes[kind:upper()], values, shown, nil, said)
  self.fields[path], self.protos[#self.protos + 1] = { proto = made, kind = kind, values = values }, made
end

function Protocol:form(header, sub_batch) -- how chunks are laid out
  local size = 0
  for _, entry in ipairs(header) do size = size + SIZE[entry[2]] end
  self.forms[#self.forms + 1] = { header = header, sub_batch = sub_batch, size = size }
end

function Protocol:message(name, kind, side, match, entries)
  local key = ""
  self.matched, self.head_size = match, 0
  for _, entry in ipairs(self.head) do
    self.head_size = self.head_size + SIZE[entry[2]]
    if match[entry[1]] then key = key .. match[entry[1]] .. "/" end
  end
  self.messages[key] = self.messages[key] or {}
  table.insert(self.messages[key], { name = name, kind = kind, side = side, lists = { entries }, head = #self.head })
end

function Protocol:command(code, name, ask, answer) self.commands[code] = { name = name, client = ask, server = answer } end

function Protocol:conversation(pinfo) -- its state, and which side sent this packet
  local one, other = tostring(pinfo.src) .. " " .. pinfo.src_port, tostring(pinfo.dst) .. " " .. pinfo.dst_port
  local key = one < other and one .. " " .. other or other .. " " .. one
  local st = self.conversations[key] or { open = {}, long = {} }
  self.conversations[key] = st
  st.client = st.client or self.ports[pinfo.dst_port] and pinfo.src_port or self.ports[pinfo.src_port] and pinfo.dst_port or nil
  return st, st.client and (pinfo.src_port == st.client and "client" or "server")
end

local function answered(record, asked)
  if asked and not record.request then record.request, asked.response = asked, asked.response or record end
end

-- Protocols whose frames begin with a size and the numbers of a command

local plain = { least = function(P) return P.head_size end }
local UNKNOWN, HIDDEN = { { "body", rest } }, { { "body", rest, secret = true } }
local LOGIN = { PeerProperties = true, SaslHandshake = true, SaslAuthenticate = true, Heartbeat = true, Close = true }

local function known_of(P, tvb, at) -- the messages that a frame may be, and its length
  local key, length = "", nil
  for _, entry in ipairs(P.head) do
    local value = VALUE[entry[2]](tvb, at)
    at, length = at + SIZE[entry[2]], length or value + SIZE[entry[2]]
    if P.matched[entry[1]] then key = key .. value .. "/" end
  end
  return P.messages[key], length
end

function plain.length(P, tvb, at) -- the length of a frame, and whether it is known to be one
  local known, length = known_of(P, tvb, at)
  return length >= P.head_size and length <= (known and LARGEST or LARGEST_UNKNOWN) and length or nil, known
end

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
  record.shown = r.reading.head
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
  local name, kind, side, top = r.reading.name, r.reading.kind, r.reading.side, r.top
  if not r.sound then return end
  if side and not st.client then st.client = side == "client" and pinfo.src_port or pinfo.dst_port end
  local asks, status = kind ~= "response", nil
  for index = r.head + 1, #r.nodes do status = status or r.nodes[index].labelled and r.nodes[index] end
  record.refused = not asks and (name == "PublishError" or status and not (P.accepted or { [0] = true })[status.value])
  st.began = st.began or asks and name == "SaslHandshake"
  st.accepted = st.accepted or not LOGIN[name] or name == "SaslAuthenticate" and not asks and status and status.label == "OK"
  local port, keys = asks and pinfo.src_port or pinfo.dst_port, ids_of(r.nodes, {})
  for index, id in ipairs(keys) do keys[index] = port .. " " .. tostring(top.publisher_id) .. " " .. id end
  for _, one in ipairs(keys[1] and {} or asks and { r.reading } or readings_of(P, r.tvb)) do -- an answer may have the key of another
    keys[#keys + 1] = port .. " " .. one.name .. " " .. tostring(top.correlation_id or top.id or top.subscription_id)
  end
  for _, key in ipairs(keys) do
    if not asks then answered(record, st.open[key]) end
    st.open[key] = asks and record or nil
  end
end

-- Apache Iggy: neither its layout is in a frame nor, mostly, what it answers

local iggy = { follow = function() end }
local HEADER, TOLD, REQUEST, REPLY, EVICTION, REGISTER, OTHERS = 256, 64, 5, 8, 13, 1, 2

local function u32(tvb, at) return tvb:len() >= at + 4 and tvb(at, 4):le_uint() or 0 end
local function byte(tvb, at) return tvb:len() > at and tvb(at, 1):uint() or 0 end
local function hex(tvb, at, size) return tvb:len() >= at + size and tostring(tvb(at, size):bytes()) or "" end

local function any(tvb, at, behind) -- whether a byte is not zero
  return tvb:len() >= behind and tostring(tvb(at, behind - at):bytes()):find("[^0]") ~= nil
end

local function is_long(P, tvb, st, from) -- whether a side has headers of 256 bytes, told by its first bytes
  local zero, kind, told = u32(tvb, 0) == 0, byte(tvb, 60), tvb:len() >= TOLD
  if st.long.client == nil and st.long.server == nil and tvb:len() >= 128 and kind ~= REQUEST and P.replicas[kind] then
    st.replica = u32(tvb, 48) >= HEADER and u32(tvb, 56) == 0 and not any(tvb, 62, 128)
    if st.replica then st.long.client, st.long.server = true, true end
  end
  if st.long[from] == nil and tvb:len() >= 8 then
    if from == "client" then st.long.client = zero
    elseif st.long.client == false or not zero then st.long.server = false
    elseif told then st.long.server = u32(tvb, 48) >= HEADER and (kind == REPLY or kind == EVICTION) end
  end
  return st.long[from] or false
end

function iggy.least(P, tvb, st, from) return is_long(P, tvb, st, from) and TOLD or 8 end

function iggy.length(P, tvb, at, st, from)
  local first, second, size, kind = u32(tvb, at), u32(tvb, at + 4), u32(tvb, at + 48), byte(tvb, at + 60)
  if is_long(P, tvb, st, from) then
    local known = kind < 30 or st.replica and size <= LARGEST_UNKNOWN and not any(tvb, at + 62, at + 128)
    return size >= HEADER and size <= LARGEST and kind > 0 and known and size or nil, true
  end
  local known = P.commands[second]
  if from == "client" then return first >= 4 and first <= (known and LARGEST or LARGEST_UNKNOWN) and first + 4 or nil, known end
  return (first == 0 and second <= LARGEST or P.statuses[first] and second < 0x10000) and second + 8 or nil, true
end

local function narrow(P, tvb, st, from) -- what the header, or the version of a login, tells of V5
  local newest, operation, v5 = P.layouts[#P.layouts], byte(tvb, 176), nil
  if P.proto.prefs.layout > 0 or st.candidates[#st.candidates] ~= newest or tvb:len() < HEADER then return end
  if from == "server" then v5 = byte(tvb, 60) == REPLY and any(tvb, 136, 144) or nil
  elseif operation == REGISTER then v5 = u32(tvb, HEADER) >= P.v5_version
  else v5 = any(tvb, 152, 160) or any(tvb, 208, 224) or operation == OTHERS and u32(tvb, 196) > 0 and any(tvb, 200, 208) or nil end
  if v5 then st.candidates = { newest } elseif v5 == false then table.remove(st.candidates) end
end

local function is_v5(P, st) return st.candidates[1] == P.layouts[#P.layouts] end

local function ask(P, tvb, st, record, long) -- what a request asks for
  record.code = u32(tvb, 4)
  if long then
    local operation, later = byte(tvb, 176), u32(tvb, 196) > 0 and 196 or u32(tvb, 204) > 0 and 204 or 200
    record.code = operation == REGISTER and 40 or operation == OTHERS and u32(tvb, later) or P.operations[operation]
    if record.code == 123 and P.rank[st.candidates[1]] >= P.rank.V4 then record.code = -123 end -- it had another meaning before
    record.ident = hex(tvb, 168, 8)
    record.operation, record.who = operation, hex(tvb, 128, 16) .. hex(tvb, 168, 8)
  elseif record.code == 32 and tvb:len() > 8 or record.code == 33 and tvb:len() == 8 and st.candidates[1] == "L0" then
    record.code = -record.code -- as the first releases have it
  end
  if long and byte(tvb, 60) ~= REQUEST then return end
  if st.oldest then st.newest.next = record else st.oldest = record end
  st.newest = record
end

local function answer(P, tvb, st, record, long) -- what a response answers: the oldest request, or in the long framing the one it names
  local number, v5, before, asked = hex(tvb, 200, 8), long and is_v5(P, st), nil, st.oldest
  local who = hex(tvb, 160, 16) .. number
  if long and byte(tvb, 60) == REPLY then record.operation = byte(tvb, 208) end
  while record.operation and asked and not (asked.who == who or v5 and asked.ident == number) do before, asked = asked, asked.next end
  if not asked and not (v5 and record.operation) then before, asked = nil, st.oldest end
  if st.long.client ~= st.long.server or not asked then return end
  if before then before.next = asked.next else st.oldest = asked.next end
  if st.newest == asked then st.newest = before end
  record.code, record.operation = asked.code, record.operation or asked.operation
  answered(record, asked)
end

local function table_of(P, tvb, st, from, record, layout) -- how a layout reads a frame: a key, the heads, and the forms behind them
  local command, v1, kind, operation, forms, first = P.commands[record.code], layout == "V1", byte(tvb, 60), record.operation, nil, nil
  local known = command and since(P, command.client, layout)
  if known and known[1] and (record.code >= 0 or layout == "L0" or P.rank[layout] > P.classic) then
    forms, first = since(P, command[from], layout)
  end
  local later = layout == "V5" and not st.candidates[2] and "V5" or "V2"
  if not st.long[from] then
    if from == "server" and u32(tvb, 0) > 0 then return "error " .. layout, { P.error }, { {} } end
    return tostring(first), { from == "client" and P.ask or P.answer }, forms
  elseif from == "client" then
    local header = not v1 and later or operation == OTHERS and u32(tvb, 204) == 0 and u32(tvb, 200) > 0 and "V1a" or "V1"
    if operation == REGISTER and forms then forms = { forms[1], forms[2], table.unpack((since(P, P.commands[45].client, layout))) } end
    return header .. tostring(first), { kind == REQUEST and P["request_" .. header] or P.other }, kind == REQUEST and forms or nil
  elseif kind ~= REPLY then
    return "other", { kind == EVICTION and P.eviction or P.other }, kind == EVICTION and { {} } or nil
  end
  local head, listed = v1 and P.reply_V1 or P["reply_" .. later], P.listed[operation] or operation == REGISTER
  if u32(tvb, v1 and 224 or 216) > 0 then return "error " .. layout, { head }, { {} } end
  if listed and u32(tvb, HEADER) > 0 then return "failed " .. layout, { head, P.results }, { {} } end
  listed = listed and (operation ~= REGISTER or tvb:len() > HEADER)
  return tostring(v1) .. tostring(first), { head, listed and P.results or nil }, forms
end

local function settle(P, tvb, st, ways) -- keep the layouts that read a frame without a flaw, better those that find nothing odd in it
  local kept, plausible = {}, {}
  for _, way in ipairs(ways) do
    local r = best_of(P, tvb, way.readings)
    way.fits, way.plausible = r.sound and not r.reading.unknown, r.sound and not r.reading.unknown and not r.odd
  end
  for _, layout in ipairs(st.candidates) do
    if ways[layout].fits then kept[#kept + 1] = layout end
    if ways[layout].plausible then plausible[#plausible + 1] = layout end
  end
  st.candidates = plausible[1] and plausible or kept[1] and kept or st.candidates
end

-- Replicas of Apache Iggy: both sides ask, and a frame names what it answers

local PREPARE, REPAIR_PREPARE = 6, 19
local OWN = { -- by command, where that which is in the answer, too, stands
  [6] = { { 216, 8 }, { 176, 8 } }, [11] = { { 52, 4 }, { 144, 8 } }, [14] = {}, [17] = { { 240, 16 }, { 128, 8 } }, [18] = { { 128, 16 } },
  [22] = { { 128, 16 } }, [24] = { { 128, 16 }, { 144, 8 }, { 164, 4 } }, [26] = { { 144, 16 } }, [28] = { { 144, 16 } },
}
local ASKED = { -- and by command, what an answer answers, and where the same stands in it
  [7] = { 6, { 200, 8 }, { 160, 8 } }, [15] = { 14 }, [20] = { 18, { 128, 16 } }, [21] = { 18, { 128, 16 } }, [23] = { 22, { 128, 16 } },
  [25] = { 24, { 128, 16 }, { 144, 8 }, { 160, 4 } }, [27] = { 26, { 128, 16 } }, [29] = { 28, { 128, 16 } },
}
local DENIES = { [15] = "status", [27] = "outcome", [29] = "outcome" }

local function key_of(tvb, from, kind, places) -- what a request and its answer share
  local key = from .. kind
  for _, place in ipairs(places) do key = key .. " " .. hex(tvb, place[1], place[2]) end
  return key
end

local function replicate(P, tvb, st, from, record, fresh) -- a frame between replicas
  local kind, hidden = byte(tvb, 60), { { "body", rest, secret = true } }
  local one = P.replicas[kind] or { name = "unknown " .. kind, kind = "one_way", head = P.other, body = hidden, unknown = true }
  local carried = (kind == PREPARE or kind == REPAIR_PREPARE) and byte(tvb, 208) or kind == REQUEST and byte(tvb, 176)
  local body = not carried and one.body or not (kind == REQUEST and carried == 160) and P.prepared[carried] or hidden
  local r = read_frame(P, tvb, { lists = { one.head, body }, layout = "V4", unknown = one.unknown })
  if not r.sound and tvb:len() == tvb:reported_len() then r = read_frame(P, tvb, { lists = { one.head, hidden }, layout = "V4" }) end
  r.reading.name, r.reading.kind = one.name, one.kind
  local other = from == "client" and "server" or "client"
  st.open = st.open or {} -- a guess has none
  if fresh and tvb:len() >= HEADER then
    local own, asked = OWN[kind], ASKED[kind]
    if kind == 12 and any(tvb, 240, 256) then asked = { 17, { 240, 16 }, { 144, 8 } } elseif kind == 12 then asked = { 11, { 52, 4 }, { 144, 8 } } end
    if kind == 10 then own, asked = { { 52, 4 }, { 128, 8 } }, { 10, { 52, 4 }, { 128, 8 } } end
    local key = asked and key_of(tvb, other, asked[1], { table.unpack(asked, 2) })
    if key and st.open[key] then
      answered(record, st.open[key])
      own, st.open[key] = nil, nil
    end
    key = own and key_of(tvb, from, kind, own)
    record.view = hex(tvb, 52, 4)
    if key and not (st.open[key] and st.open[key].view == record.view) then st.open[key] = record end
  end
  if kind == 10 or kind == 12 then r.reading.kind = record.request and "response" or kind == 10 and "request" or "one_way" end
  for _, node in ipairs(r.nodes) do
    if node.name == DENIES[kind] and node.value ~= 0 then r.refusal = told(node) or "refused" end
    if kind == 23 and node.name == "available" and not (node.value == true or node.value == 1) then r.refusal = "not available" end
  end
  record.refused = r.refusal ~= nil or kind == 21
  return r
end

function iggy.decode(P, tvb, st, from, record, fresh)
  if is_long(P, tvb, st, from) and st.replica then return replicate(P, tvb, st, from, record, fresh) end
  local long, chosen, ways, by_key = is_long(P, tvb, st, from), P.layouts[P.proto.prefs.layout], {}, {}
  st.candidates = st.candidates or {}
  for rank, layout in ipairs(st.candidates[1] and {} or P.layouts) do
    if layout == chosen or not chosen and (rank > P.classic) == long then table.insert(st.candidates, layout) end
  end
  if fresh and long then narrow(P, tvb, st, from) end
  if fresh and from == "client" then ask(P, tvb, st, record, long) elseif fresh then answer(P, tvb, st, record, long) end
  for _, layout in ipairs(st.candidates) do
    local key, heads, forms = table_of(P, tvb, st, from, record, layout)
    if not by_key[key] then
      by_key[key] = { readings = {} }
      for index, form in ipairs(forms or { HIDDEN }) do
        local lists = { heads[1], heads[2] or form, heads[2] and form }
        by_key[key].readings[index] = { lists = lists, layout = layout, unknown = not forms }
      end
      ways[#ways + 1] = by_key[key]
    end
    ways[layout] = by_key[key]
  end
  local tells = from == "client" or tvb:len() > (long and HEADER or 8)
  if fresh and tells and ways[2] and tvb:len() == tvb:reported_len() then settle(P, tvb, st, ways) end
  local likely = st.candidates[#st.candidates]
  for _, layout in ipairs(st.candidates) do likely = layout == st.hint and layout or likely end
  local r, command = best_of(P, tvb, ways[likely].readings), P.commands[record.code]
  if not r.sound and tvb:len() == tvb:reported_len() then -- whatever it is, it may hold a password or a token
    r = read_frame(P, tvb, { lists = { r.reading.lists[1], HIDDEN }, layout = likely, unknown = true })
  end
  local server = rawget(r.top, "server_version")
  local stated = server or rawget(r.top, "version") or rawget(r.top, "sdk_version")
  if r.sound and type(stated) == "string" then
    st.hint = P.edges[stated] or (server and P.server_versions or P.client_versions)[stated:match("^%d+%.%d+") or ""] or st.hint
  end
  r.reading.name, r.reading.kind = command and command.name or "unknown " .. (record.code or ""), from == "client" and "request" or "response"
  local result = r.reading.lists[2] == P.results and r.nodes[r.head + 1]
  for _, node in ipairs(from == "server" and (result and result.children or r.nodes) or {}) do
    if (node.name == "status" or node.name == "result") and node.value ~= 0 then r.refusal = told(node) or "refused" end
  end
  record.refused = r.refusal ~= nil
  return r
end

-- What Wireshark calls

function Protocol:guess(tvb, pinfo, st, strong) -- whether frames without a flaw fill these bytes, those of a client where the sides differ
  local at, family, trial = 0, self.family, { long = {}, accepted = true }
  local from = family == iggy and "client" or nil
  strong = strong or not from and (self.ports[pinfo.src_port] or self.ports[pinfo.dst_port])
  while tvb:len() - at >= family.least(self, tvb, trial, from) do
    local length, known = family.length(self, tvb, at, trial, from)
    if not length or not known or length > tvb:len() - at then break end
    local r = family.decode(self, tvb(at, length):tvb(), trial, from, {}, true)
    if not r.sound or #r.notes > 0 or r.reading.unknown or r.odd then return false end
    at, strong = at + length, strong or length >= 16
  end
  if at < tvb:len() and from or at == 0 or not strong then return false end
  st.client = st.client or from and pinfo.src_port
  return true
end

function Protocol:frame(tvb, pinfo, root, st, from, infos)
  local P, tree, added = self, root:add(self.proto, tvb()), self.added
  if tvb:len() < P.family.least(P, tvb, st, from) or not P.family.length(P, tvb, 0, st, from) then
    return tree:append_text(", continuation data")
  end
  local key = pinfo.number .. "/" .. tvb:offset() .. "/" .. tvb:reported_len()
  local record, fresh = P.records[key] or { number = pinfo.number, time = pinfo.rel_ts }, not P.records[key]
  P.records[key] = record
  if fresh and lost_segment() then st.oldest = from == "server" and st.newest or nil end
  local r = P.family.decode(P, tvb, st, from, record, fresh)
  if fresh then P.family.follow(P, st, r, record, pinfo) end
  -- The first message may have told which side is the client
  local way = st.client and (pinfo.src_port == st.client and ">" or "<") or "-"
  st.known, infos[#infos + 1] = st.known or r.sound, summary(r, way)
  tree:append_text((", %s %s"):format(r.reading.name, r.reading.kind:gsub("_", "-")))
  show(P, r, tree, r.nodes)
  if record.response then tree:add(added.response_in, record.response.number):set_generated() end
  if record.request then
    local nanoseconds = math.floor((record.time - record.request.time) * 1e9 + 0.5)
    local seconds = math.floor(nanoseconds / 1e9)
    tree:add(added.response_to, record.request.number):set_generated()
    tree:add(added.response_time, NSTime.new(seconds, nanoseconds - seconds * 1e9)):set_generated()
  end
  local function tell(what, said) tree:add_proto_expert_info(P.experts[what], said) end
  if r.fault then tell("fault", ("%s at byte %d: %s"):format(r.field or "frame", r.fault.at, r.fault.reason)) end
  if record.refused then tell("refused", r.reading.name .. " was refused") end
  if r.trailing then tell("note", "bytes are left over") end
  if r.reading.unknown then tell("note", "this command is not known") end
  for _, said in ipairs(r.notes) do tell("note", said) end
end

function Protocol:dissect(tvb, pinfo, tree)
  local st, from = self:conversation(pinfo)
  local family, infos = self.family, {}
  if not from and family == iggy then
    st.client = self:guess(tvb, pinfo, st, true) and pinfo.src_port or pinfo.dst_port
    from = pinfo.src_port == st.client and "client" or "server"
  end
  local least = family.least(self, tvb, st, from)
  if tvb:len() >= least and not st.known then
    local size, known = family.length(self, tvb, 0, st, from)
    if not size or not known then return 0 end
  end
  pinfo.cols.protocol = self.title
  local function length(buffer, _, offset)
    local ok, size = pcall(family.length, self, buffer, offset, st, from)
    return ok and size or buffer:reported_len() - offset
  end
  local function one(buffer, info, root)
    local ok, wrong = pcall(self.frame, self, buffer, info, root, st, from, infos)
    if not ok then root:add(self.proto, buffer()):add_proto_expert_info(self.experts.fault, "Lua Error: " .. tostring(wrong)) end
    return buffer:len()
  end
  pcall(dissect_tcp_pdus, tvb, tree, least, length, one) -- fails where the capture cut a segment short
  pinfo.cols.info = infos[1] and table.concat(infos, "; ") or "continuation data"
  pinfo.cols.info:fence()
  return tvb:len()
end

local taken = {} -- ports, by the protocol that is listed first

local function register(P)
  local proto, values, experts = P.proto, { { 1, "told by what is said", 0 } }, {}
  local function field(name, title, kind, ...)
    P.added[name] = ProtoField.new(title, P.name .. "." .. name, kind, ...)
    table.insert(P.protos, P.added[name])
  end
  local function expert_field(name, title, of, severity)
    P.experts[name] = ProtoExpert.new(P.name .. "." .. name, title, expert.group[of], expert.severity[severity])
    table.insert(experts, P.experts[name])
  end
  P.family, P.experts, P.added, P.conversations, P.records, P.rank = P.layouts and iggy or plain, {}, {}, {}, {}, {}
  field("response_in", "Response in", ftypes.FRAMENUM, frametype.RESPONSE)
  field("response_to", "Response to", ftypes.FRAMENUM, frametype.REQUEST)
  field("response_time", "Response time", ftypes.RELATIVE_TIME)
  expert_field("fault", "The frame cannot be read", "MALFORMED", "ERROR")
  expert_field("refused", "The request was refused", "RESPONSE_CODE", "WARN")
  expert_field("note", "Anomaly", "PROTOCOL", "NOTE")
  proto.fields, proto.experts = P.protos, experts
  proto.prefs.secrets = Pref.bool("Show passwords and tokens", false, "in the tree and in columns")
  for rank, layout in ipairs(P.layouts or {}) do P.rank[layout], values[rank + 1] = rank, { rank + 1, layout, rank } end
  if P.layouts then proto.prefs.layout = Pref.enum("Layout", 0, "of all conversations; no frame states it", values, false) end
  function proto.init() P.conversations, P.records = {}, {} end
  function proto.dissector(tvb, pinfo, tree) return P:dissect(tvb, pinfo, tree) end
  for _, transport in ipairs({ "tcp", "tls", "ws" }) do -- WebSocket, whose port is that of HTTP
    local ports, sealed = DissectorTable.get(transport .. ".port"), transport ~= "tcp"
    for port, of in pairs(P.ports) do
      -- What WebSocket begins with is HTTP's
      if not taken[transport .. port] and (of == "tcp" or transport == "ws") then ports:add(port, proto) end
      taken[transport .. port] = true
    end
    if not sealed then ports:add_for_decode_as(proto) end
    proto:register_heuristic(transport, function(tvb, pinfo, tree)
      local st = P:conversation(pinfo)
      local ok, found = pcall(P.guess, P, tvb, pinfo, st)
      if not (ok and found) and not st.sealed then return false end
      st.sealed = sealed
      if not sealed then pinfo.conversation = proto end -- within TLS that would be the dissector of what is sealed
      return P:dissect(tvb, pinfo, tree) > 0
    end)
  end
end
