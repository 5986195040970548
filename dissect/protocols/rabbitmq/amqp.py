"""AMQP 1.0 message bodies: sections down to every value (OASIS AMQP 1.0, parts 1 and 3).

RabbitMQ Streams does not look into message bodies; clients put AMQP 1.0 messages there by convention. A body is
AMQP when it reads as sections up to its last byte, so everything here raises `NotAmqp` at the first doubt and the
caller shows the bytes instead.

Values keep their type as {"type", "value"} where JSON would lose it: null, boolean, string, list and map stand for
themselves. A field whose type the specification declares stands for itself as that type, or null, and as no other.
"""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite
from struct import Struct, error
from typing import Any
from uuid import UUID

import msgspec

from ...quota import PLENTY, Spans, ValueQuota
from ...units import lossy, not_finite

PAIR, DESCRIBED = 3, 2
"""How many values a pair of a map is, with its key and its value, and how many are in a described value: descriptor and value."""

DEPTH_LIMIT = 48
"""Levels of nesting that are followed. Real messages have fewer than ten."""

MAX_EMPTY_ITEMS = 16
"""The number of items of an array without bytes that are shown one by one."""

Render = Callable[[bytes], Any]
"""How bytes are shown."""


class NotAmqp(ValueError):
    """The bytes are not an AMQP 1.0 message; the text gives the reason."""


class Stopped(ValueError):
    """The value quota is used up: `sections` were decoded, and the next one begins at `at`."""

    def __init__(self, sections: list[dict[str, Any]], at: int, reason: str) -> None:
        super().__init__(reason)
        self.sections = sections
        self.at = at
        self.reason = reason


SECTIONS = {
    0x70: "header",
    0x71: "delivery-annotations",
    0x72: "message-annotations",
    0x73: "properties",
    0x74: "application-properties",
    0x75: "data",
    0x76: "amqp-sequence",
    0x77: "amqp-value",
    0x78: "footer",
}

_SYMBOLS = {
    b"amqp:header:list": 0x70,
    b"amqp:delivery-annotations:map": 0x71,
    b"amqp:message-annotations:map": 0x72,
    b"amqp:properties:list": 0x73,
    b"amqp:application-properties:map": 0x74,
    b"amqp:data:binary": 0x75,
    b"amqp:amqp-sequence:list": 0x76,
    b"amqp:amqp-value:*": 0x77,
    b"amqp:footer:map": 0x78,
}

_HEADER = (("durable", "boolean"), ("priority", "ubyte"), ("ttl", "uint"), ("first_acquirer", "boolean"), ("delivery_count", "uint"))

_PROPERTIES = (
    ("message_id", None),
    ("user_id", "binary"),
    ("to", "string"),
    ("subject", "string"),
    ("reply_to", "string"),
    ("correlation_id", None),
    ("content_type", "symbol"),
    ("content_encoding", "symbol"),
    ("absolute_expiry_time", "timestamp"),
    ("creation_time", "timestamp"),
    ("group_id", "string"),
    ("group_sequence", "uint"),
    ("reply_to_group_id", "string"),
)

_LISTED = {"header": _HEADER, "properties": _PROPERTIES}
"""The sections that are lists whose items have names."""

_DECLARED = {"data": "binary", "amqp-sequence": "list"}
"""What others hold, unless it is a map; amqp-value holds anything."""

_ANNOTATIONS = frozenset(("delivery-annotations", "message-annotations", "footer"))
"""The maps whose keys are symbols."""

_TYPED = {
    kind: tuple({"type": kind, "value": value} for value in range(256))
    for kind in ("ubyte", "byte", "ushort", "short", "uint", "int", "ulong", "long")
}
"""Small numbers with their types, each made once: a frame may hold a million of them."""

_NATURAL = frozenset(("null", "boolean", "string", "list", "map"))
"""Types that JSON distinguishes."""


def looks_like(data: bytes, at: int, end: int) -> bool:
    """Whether data[at:end] begins as a section does: decides whether it is worth reading."""
    if end - at < 3 or data[at]:
        return False
    code = data[at + 1]
    if code == 0x53:
        return 0x70 <= data[at + 2] <= 0x78
    if code == 0x80:
        return data[at + 2 : at + 9] == b"\0\0\0\0\0\0\0"
    return code in (0xA3, 0xB3) and data.find(b"amqp:", at, at + 11) > 0


def read(
    data: bytes,
    at: int,
    end: int,
    render: Render,
    values: ValueQuota = PLENTY,
    spans: Spans | None = None,
    depth: int = 0,
    notes: list[str] | None = None,
) -> list[dict[str, Any]]:
    """Return the sections of the message data[at:end], within the quota `values`; `spans` collects their byte ranges.

    `notes` collects anomalies; without it, text that is not UTF-8 raises `NotAmqp`.
    """
    sections: list[dict[str, Any]] = []
    reader = _ValueReader(data, render, values, spans, notes)
    try:
        while at < end:
            if not values.spend():
                raise Stopped(sections, at, values.reason(f"{end - at} bytes left"))
            section, at = _section(reader, at, end, len(sections), depth)
            sections.append(section)
            if reader.stopped is not None:
                raise Stopped(sections, at, reader.stopped)
    except (IndexError, error) as wrong:
        raise NotAmqp("a value reaches beyond the message") from wrong
    except UnicodeDecodeError as wrong:
        raise NotAmqp("text is not UTF-8") from wrong
    return sections


def _section(reader: _ValueReader, at: int, end: int, index: int, depth: int) -> tuple[dict[str, Any], int]:
    data, spans = reader.data, reader.spans
    if data[at]:
        raise NotAmqp("a section begins with another byte than 0")
    begin = at
    code = data[at + 1]
    if code == 0x53:
        descriptor, at = data[at + 2], at + 3
    elif code == 0x80:
        (descriptor,), at = _U64(data, at + 2), at + 10
    elif code in (0xA3, 0xB3):
        size, at = (data[at + 2], at + 3) if code == 0xA3 else (_U32(data, at + 2)[0], at + 6)
        if size > end - at:
            raise NotAmqp("a descriptor reaches beyond the message")
        descriptor, at = _SYMBOLS.get(data[at : at + size], 0), at + size
    else:
        raise NotAmqp("no descriptor")
    name = SECTIONS.get(descriptor)
    if name is None or at >= end:
        raise NotAmqp("unknown section")
    outer = 0
    if spans is not None:
        outer = len(spans)
        spans.put(f"sections[{index}]", begin, 0, None, depth, False, name)
        spans.put("descriptor", begin, at - begin, descriptor, depth + 1, True, name)
    reader.section = name
    if name in _LISTED:
        value, at = reader.fields(at, end, _LISTED[name], depth + 1)
    else:
        reader.symbol_keys = name in _ANNOTATIONS
        kind, value, at = reader.typed(at, end, "value", depth + 1, 0)
        if name == "amqp-value":
            value = _shown(kind, value)
        elif kind != _DECLARED.get(name, "map"):
            raise NotAmqp(f"{kind} where {_DECLARED.get(name, 'map')} belongs")
    if spans is not None:
        spans.end_at(outer, at - begin)
    return {"section": name, "value": value}, at


class _ValueReader(msgspec.Struct, gc=False):
    """Reads the values of a message, one `section` at a time; `symbol_keys`: the keys of its outermost map are declared as symbols.

    Once `stopped` holds a reason, every method returns the values decoded so far, which end where the next one would begin.
    """

    data: bytes
    render: Render
    values: ValueQuota
    spans: Spans | None
    notes: list[str] | None
    section: str = ""
    symbol_keys: bool = False
    stopped: str | None = None

    def stop(self, declared: int) -> None:
        """Stop at the quota, inside a container with `declared` items."""
        self.stopped = self.values.reason(f"count says {declared}")

    def value(self, at: int, end: int, name: str, depth: int, level: int) -> tuple[Any, int]:
        """The value at `at`, with its type where JSON would lose it."""
        kind, value, at = self.typed(at, end, name, depth, level)
        return _shown(kind, value), at

    def fields(self, at: int, end: int, names: tuple[tuple[str, str | None], ...], depth: int) -> tuple[dict[str, Any], int]:
        """A list whose items have names."""
        begin = at
        code = self.data[at]
        if code == 0x45:
            at = stop = at + 1
            count = 0
        elif code in (0xC0, 0xD0):
            at, stop, count = _compound_data(self.data, code, at + 1, end)
        else:
            raise NotAmqp(f"type 0x{code:02x} where list belongs")
        if count > len(names):
            raise NotAmqp(f"{count} fields of at most {len(names)}")
        spans = self.spans
        if spans is not None:
            spans.put("value", begin, stop - begin, None, depth, False)
            spans.put("list", begin, at - begin, count, depth + 1)
        values: dict[str, Any] = {}
        typed = self.typed
        for name, declared in names[:count]:
            kind, value, at = typed(at, stop, name, depth + 1, 1)
            values[name] = value if kind == declared else _declared(declared, kind, value)
            if self.stopped is not None:
                return values, at
        if at != stop:
            raise NotAmqp("a list is longer than its items")
        return values, at

    def typed(self, at: int, end: int, name: str, depth: int, level: int, code: int | None = None) -> tuple[str, Any, int]:
        """(type, value, where it ends); values inside others carry their type themselves, as `code` where that holds for all."""
        data, begin = self.data, at
        if code is None:
            if at >= end:
                raise NotAmqp("a value is missing")
            code = data[at]
            at += 1
        if code in _VARIABLE:
            kind, wide = _VARIABLE[code]
            if wide:
                (size,), at = _U32(data, at), at + 4
            else:
                size, at = data[at], at + 1
            stop = at + size
            if stop > end:
                raise NotAmqp(f"a {kind} of {size} bytes where {end - at} are left")
            raw = data[at:stop]
            try:
                value = self.render(raw) if kind == "binary" else raw.decode()
            except UnicodeDecodeError:
                if self.notes is None:
                    raise
                value = lossy(raw)
                note = f"{kind} in {self.section} is not UTF-8"
                if note not in self.notes:
                    self.notes.append(note)
        elif code in _SCALARS:
            kind, convert, width = _SCALARS[code]
            stop = at + width
            if stop > end:
                raise NotAmqp("a value reaches beyond its container")
            value = convert(data, at)
            if kind in _BYTES:
                value = self.render(value)
        else:
            return self.nested(code, begin, at, end, name, depth, level)
        if self.spans is not None:
            self.spans.put(name, begin, stop - begin, value, depth, True, kind)
        return kind, value, stop

    def nested(self, code: int, begin: int, at: int, end: int, name: str, depth: int, level: int) -> tuple[str, Any, int]:
        """Lists, maps, arrays and described values."""
        if level >= DEPTH_LIMIT:
            raise NotAmqp(f"values are nested deeper than {DEPTH_LIMIT} levels")
        spans = self.spans
        outer = 0
        if spans is not None:
            outer = len(spans)
            spans.put(name, begin, 0, None, depth, False)
        level += 1
        value: Any
        if code == 0x00:
            kind = "described"
            if spans is not None:
                spans.put("described", begin, at - begin, 0, depth + 1)
            value = {}
            if not self.values.spend(DESCRIBED):
                self.stop(DESCRIBED)
            else:
                value["descriptor"], at = self.value(at, end, "descriptor", depth + 1, level)
            if self.stopped is None:
                value["value"], at = self.value(at, end, "value", depth + 1, level)
            stop = at
        elif code in _COMPOUND_CODES:
            kind = _COMPOUND_CODES[code]
            at, stop, count = _compound_data(self.data, code, at, end)
            if kind == "array":
                at, value = self.array(begin, at, stop, count, depth, level)
            else:
                if count > stop - at:
                    raise NotAmqp(f"count says {count}, {stop - at} bytes left")
                if spans is not None:
                    spans.put(kind, begin, at - begin, count, depth + 1, True, f"{count} items")
                if kind == "map":
                    at, value = self.map(at, stop, count, depth, level)
                else:
                    value = []
                    for index in range(count):
                        if not self.values.spend():
                            self.stop(count)
                            break
                        item, at = self.value(at, stop, f"[{index}]", depth + 1, level)
                        value.append(item)
                        if self.stopped is not None:
                            break
            if self.stopped is not None:
                stop = at
            elif at != stop:
                raise NotAmqp(f"a {kind} is longer than its items")
        else:
            raise NotAmqp(f"type 0x{code:02x} is not known")
        if spans is not None:
            spans.end_at(outer, stop - begin, kind)
        return kind, value, stop

    def map(self, at: int, stop: int, count: int, depth: int, level: int) -> tuple[int, list[dict[str, Any]]]:
        if count % 2:
            raise NotAmqp(f"a map of {count} keys and values")
        symbols = self.symbol_keys and level == 1
        spend, typed = self.values.spend, self.typed
        pairs = []
        for _ in range(count // 2):
            if not spend(PAIR):
                self.stop(count)
                break
            kind, key, at = typed(at, stop, "key", depth + 1, level)
            if symbols:
                if kind != "symbol":
                    key = _declared("symbol", kind, key)
            elif kind != "string":
                key = _shown(kind, key)
            pair = {"key": key}
            pairs.append(pair)
            if self.stopped is not None:
                break
            kind, value, at = typed(at, stop, key if type(key) is str else "value", depth + 1, level)
            pair["value"] = value if kind == "string" else _shown(kind, value)
            if self.stopped is not None:
                break
        return at, pairs

    def array(self, begin: int, at: int, stop: int, count: int, depth: int, level: int) -> tuple[int, list[Any]]:
        code, at, descriptor = self.constructor(at, stop, level)
        if self.spans is not None:
            self.spans.put("array", begin, at - begin, count, depth + 1, True, f"{count} items")
        if self.stopped is not None:
            return at, []
        empty = code in _EMPTY_TYPES
        if count > stop - at and not empty:
            raise NotAmqp(f"an array of {count} items in {stop - at} bytes")
        each = 1 + DESCRIBED * len(descriptor)
        spend = self.values.spend_empty if empty else self.values.spend
        values: list[Any] = []
        if empty and count > MAX_EMPTY_ITEMS:
            return self.alike(code, at, stop, count, descriptor, depth, level)
        for index in range(count):
            if not spend(each):
                self.stop(count)
                break
            kind, value, at = self.typed(at, stop, f"[{index}]", depth + 1, level, code)
            values.append(_described(descriptor, _shown(kind, value)))
            if self.stopped is not None:
                break
        return at, values

    def alike(self, code: int, at: int, stop: int, count: int, descriptor: list[Any], depth: int, level: int) -> tuple[int, list[Any]]:
        """Return the items of an array without bytes: one value with one span."""
        each = 1 + DESCRIBED * len(descriptor)
        made = min(count, self.values.empty // each, self.values.left // each)
        self.values.spend_empty(made * each)
        if made < count and not self.values.spend_empty(each):
            self.stop(count)
        if not made:
            return at, []
        kind, value, at = self.typed(at, stop, f"[0-{made - 1}]" if made > 1 else "[0]", depth + 1, level, code)
        return at, [_described(descriptor, _shown(kind, value))] * made

    def constructor(self, at: int, stop: int, level: int) -> tuple[int, int, list[Any]]:
        """The type code of an array's items, where the first begins, and the descriptors that hold for all."""
        spans, self.spans = self.spans, None
        descriptors: list[Any] = []
        while at < stop and self.data[at] == 0:
            if len(descriptors) + level >= DEPTH_LIMIT:
                raise NotAmqp(f"values are nested deeper than {DEPTH_LIMIT} levels")
            descriptor, at = self.value(at + 1, stop, "descriptor", 0, level)
            descriptors.append(descriptor)
            if self.stopped is not None:
                self.spans = spans
                return 0, at, descriptors
        self.spans = spans
        if at >= stop:
            raise NotAmqp("an array has no constructor")
        return self.data[at], at + 1, descriptors


def _shown(kind: str, value: Any) -> Any:
    """Return the raw value where JSON shows its type; an empty map would look like an empty list."""
    if kind in _NATURAL and (value or kind != "map"):
        return value
    small = _TYPED.get(kind)
    return small[value] if small is not None and 0 <= value < len(small) else {"type": kind, "value": value}


def _described(descriptors: list[Any], value: Any) -> Any:
    """An item of an array with the descriptors that hold for all."""
    for one in reversed(descriptors):
        value = {"type": "described", "value": {"descriptor": one, "value": value}}
    return value


def _declared(declared: str | None, kind: str, value: Any) -> Any:
    """A value where another type is declared, or none: a string where a symbol belongs would look like one."""
    return _shown(kind, value) if declared is None or kind == "null" else {"type": kind, "value": value}


def _compound_data(data: bytes, code: int, at: int, end: int) -> tuple[int, int, int]:
    """Where the items begin and end and how many there are; `at` is behind the constructor."""
    if code & 0x10:
        size, count = _U32U32(data, at)
        body, stop = at + 8, at + 4 + size
    else:
        size, count = data[at], data[at + 1]
        body, stop = at + 2, at + 1 + size
    if stop > end or stop < body:
        raise NotAmqp(f"a size of {size} bytes where {end - at} are left")
    return body, stop, count


_U32 = Struct(">I").unpack_from
_U32U32 = Struct(">II").unpack_from
_U64 = Struct(">Q").unpack_from


def _number(code: str) -> Callable[[bytes, int], Any]:
    unpack = Struct(">" + code).unpack_from
    return lambda data, at: unpack(data, at)[0]


def _float(code: str) -> Callable[[bytes, int], Any]:
    unpack = Struct(">" + code).unpack_from

    def read_float(data: bytes, at: int) -> float | str:
        value: float = unpack(data, at)[0]
        return value if isfinite(value) else not_finite(value)

    return read_float


def _boolean(data: bytes, at: int) -> bool:
    if data[at] > 1:
        raise NotAmqp(f"boolean {data[at]}")
    return bool(data[at])


def _char(data: bytes, at: int) -> str:
    (code,) = _U32(data, at)
    if code > 0x10FFFF or 0xD800 <= code < 0xE000:
        raise NotAmqp(f"char 0x{code:x}")
    return chr(code)


def _constant(value: Any) -> Callable[[bytes, int], Any]:
    return lambda data, at: value


_BYTES = frozenset(("decimal32", "decimal64", "decimal128"))

_SCALARS: dict[int, tuple[str, Callable[[bytes, int], Any], int]] = {
    0x40: ("null", _constant(None), 0),
    0x41: ("boolean", _constant(True), 0),
    0x42: ("boolean", _constant(False), 0),
    0x43: ("uint", _constant(0), 0),
    0x44: ("ulong", _constant(0), 0),
    0x45: ("list", lambda data, at: [], 0),
    0x50: ("ubyte", _number("B"), 1),
    0x51: ("byte", _number("b"), 1),
    0x52: ("uint", _number("B"), 1),
    0x53: ("ulong", _number("B"), 1),
    0x54: ("int", _number("b"), 1),
    0x55: ("long", _number("b"), 1),
    0x56: ("boolean", _boolean, 1),
    0x60: ("ushort", _number("H"), 2),
    0x61: ("short", _number("h"), 2),
    0x70: ("uint", _number("I"), 4),
    0x71: ("int", _number("i"), 4),
    0x72: ("float", _float("f"), 4),
    0x73: ("char", _char, 4),
    0x74: ("decimal32", lambda data, at: data[at : at + 4], 4),
    0x80: ("ulong", _number("Q"), 8),
    0x81: ("long", _number("q"), 8),
    0x82: ("double", _float("d"), 8),
    0x83: ("timestamp", _number("q"), 8),
    0x84: ("decimal64", lambda data, at: data[at : at + 8], 8),
    0x94: ("decimal128", lambda data, at: data[at : at + 16], 16),
    0x98: ("uuid", lambda data, at: str(UUID(bytes=data[at : at + 16])), 16),
}

_VARIABLE = {
    0xA0: ("binary", False),
    0xA1: ("string", False),
    0xA3: ("symbol", False),
    0xB0: ("binary", True),
    0xB1: ("string", True),
    0xB3: ("symbol", True),
}

_EMPTY_TYPES = frozenset(code for code, (_, _, width) in _SCALARS.items() if not width)
"""Types whose values have no bytes in an array."""

_COMPOUND_CODES = {0xC0: "list", 0xD0: "list", 0xC1: "map", 0xD1: "map", 0xE0: "array", 0xF0: "array"}
