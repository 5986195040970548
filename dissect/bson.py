"""BSON (bsonspec.org, version 1.1), read into MongoDB Extended JSON v2, relaxed.

The one self-describing format here, so `read` (values only, strict, fast) and `walk` (byte ranges, exact faults, goes on behind
damage) are written by hand; a property test checks that they agree. A document that repeats a key becomes an array of
{"key", "value"}. What real servers accept is kept, with a note: a wrong length of an inner document, a boolean that
is neither 00 nor 01, text that is not UTF-8.
"""

from __future__ import annotations

from binascii import b2a_base64
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from struct import Struct, error
from typing import Any, Final

import msgspec

from .model import VALUES, Fault, Limited, Span
from .quota import Spans, ValueQuota
from .units import lossy, not_finite

NESTING_LIMIT: Final = 200
"""Documents and arrays inside each other, the outermost not counted. Real events have fewer than ten levels."""

NOTES_LIMIT: Final = 16
"""Notes on one document; further ones are counted."""

NAME_SHOWN: Final = 64
"""Characters of a name in the path of a note or fault."""

UNREADABLE: Final = (ValueError, IndexError, error)
"""What `read` raises unless the bytes are a valid document without repeated keys."""

TYPES: Final = {
    0x01: "double",
    0x02: "string",
    0x03: "document",
    0x04: "array",
    0x05: "binary",
    0x06: "undefined",
    0x07: "ObjectId",
    0x08: "boolean",
    0x09: "datetime",
    0x0A: "null",
    0x0B: "regex",
    0x0C: "DBPointer",
    0x0D: "code",
    0x0E: "symbol",
    0x0F: "code with scope",
    0x10: "int32",
    0x11: "timestamp",
    0x12: "int64",
    0x13: "decimal128",
    0x7F: "max key",
    0xFF: "min key",
}


ELEMENT: Final = 2
"""Bytes of an element at least: its type and the end of its name."""


DOUBLE: Final = frozenset((0x05, 0x0B, 0x0C, 0x0F, 0x11))
"""Types that are shown as an object in an object, and count as two values; they have at least four bytes."""


class Special(dict[str, Any]):
    """A value without a JSON type, in its Extended JSON form; its class distinguishes it from a document."""

    __slots__ = ()


class Unusual(ValueError):
    """Bytes that are not a valid document, or one that needs a note."""


_INT32 = Struct("<i").unpack_from
_INT64 = Struct("<q").unpack_from
_DOUBLE = Struct("<d").unpack_from
_PAIR = Struct("<II").unpack_from
_WIDE = Struct("<QQ").unpack_from


def read(data: bytes, start: int, end: int, spans: list[Span] | None = None, origin: int = 0, depth: int = 0) -> dict[str, Any]:
    """Return the document data[start:end]; raises one of `UNREADABLE`: then `walk` reports why, or shows the repeated keys.

    `spans` gets the spans of its elements, at `depth`, and of its end; their offsets count from `origin`.
    """
    if end - start < 5 or _INT32(data, start)[0] != end - start or data[end - 1]:
        raise Unusual
    found: dict[str, Any] = _document(data, start + 4, end - 1, depth, True, spans, origin)
    return found


def _document(data: bytes, at: int, last: int, depth: int, named: bool, spans: list[Span] | None, origin: int) -> Any:
    """Return the elements data[at:last]; `last` is the index of the document's final 00. For an array this is a list: the names have no
    meaning."""
    document: dict[str | int, Any] = {}
    count = 0
    name: Any
    value: Any
    while at < last:
        begin = at
        kind = data[at]
        stop = data.index(0, at + 1, last)
        name = data[at + 1 : stop].decode() if named else count
        at = stop + 1
        # in the order of how often they are met
        if kind == 0x10:
            value = _INT32(data, at)[0]
            at += 4
        elif kind == 0x02:
            stop = at + 4 + _INT32(data, at)[0]
            if stop <= at + 4 or stop > last or data[stop - 1]:
                raise Unusual
            value = data[at + 4 : stop - 1].decode()
            at = stop
        elif kind == 0x12:
            value = _INT64(data, at)[0]
            at += 8
        elif kind == 0x08:
            value = data[at]
            if value > 1:
                raise Unusual
            value = value == 1
            at += 1
        elif kind == 0x01:
            value = _DOUBLE(data, at)[0]
            if value - value:
                value = _not_finite(value)
            at += 8
        elif kind == 0x03 or kind == 0x04:
            stop = at + _INT32(data, at)[0]
            if stop < at + 5 or stop > last or data[stop - 1] or depth >= NESTING_LIMIT:
                raise Unusual
            if spans is not None:
                called = name if named else f"[{name}]"
                spans.append(Span(called, begin - origin, stop - begin, None, depth, False))
                spans.append(Span("length", begin - origin, at + 4 - begin, stop - at, depth + 1))
            document[name] = _document(data, at + 4, stop - 1, depth + 1, kind == 0x03, spans, origin)
            count += 1
            at = stop
            continue
        elif kind == 0x0A:
            value = None
        elif kind == 0x0F and spans is not None:
            # Its parts have spans, which `walk` knows
            raise Unusual
        else:
            value, at = _rare(data, kind, at, last, depth)
        document[name] = value
        count += 1
        if spans is not None:
            called = name if named else f"[{name}]"
            spans.append(Span(called, begin - origin, at - begin, value, depth))
    if at != last or len(document) != count:
        raise Unusual
    if spans is not None:
        spans.append(Span("end", last - origin, 1, 0, depth))
    return document if named else [*document.values()]


def _rare(data: bytes, kind: int, at: int, last: int, depth: int) -> tuple[Any, int]:
    """A value of the other types; `at` beyond `last` is for the caller to notice."""
    fixed = _FIXED.get(kind)
    if fixed is not None:
        return fixed[1](data, at), at + fixed[0]
    match kind:
        case 0x05:
            size = _INT32(data, at)[0]
            stop = at + 5 + size
            if size < 0 or stop > last:
                raise Unusual
            if data[at + 4] == 2:
                if size < 4 or _INT32(data, at + 5)[0] != size - 4:
                    raise Unusual
                return _binary(data[at + 9 : stop], 2), stop
            return _binary(data[at + 5 : stop], data[at + 4]), stop
        case 0x0B:
            middle = data.index(0, at, last)
            stop = data.index(0, middle + 1, last)
            return _regex(data[at:middle].decode(), data[middle + 1 : stop].decode()), stop + 1
        case 0x0D | 0x0E:
            text, at = _string(data, at, last)
            return Special({_TEXTS[kind]: text}), at
        case 0x0C:
            text, at = _string(data, at, last)
            return _pointer(text, data[at : at + 12]), at + 12
        case 0x0F:
            stop = at + _INT32(data, at)[0]
            if stop > last or depth >= NESTING_LIMIT:
                raise Unusual
            text, inner = _string(data, at + 4, stop)
            if inner + 5 > stop or _INT32(data, inner)[0] != stop - inner or data[stop - 1]:
                raise Unusual
            return Special({"$code": text, "$scope": _document(data, inner + 4, stop - 1, depth + 1, True, None, 0)}), stop
    raise Unusual


def _string(data: bytes, at: int, last: int) -> tuple[str, int]:
    stop = at + 4 + _INT32(data, at)[0]
    if stop <= at + 4 or stop > last or data[stop - 1]:
        raise Unusual
    return data[at + 4 : stop - 1].decode(), stop


_TEXTS: Final = {0x0D: "$code", 0x0E: "$symbol"}


def _not_finite(value: float) -> Special:
    return Special({"$numberDouble": not_finite(value)})


_FIRST_MS, _LAST_MS = 0, 253_402_300_799_999


def _datetime(milliseconds: int) -> Special:
    """Readable between the years 1970 and 9999, a number elsewhere, as Extended JSON has it."""
    if _FIRST_MS <= milliseconds <= _LAST_MS:
        seconds, rest = divmod(milliseconds, 1000)
        text = datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")
        return Special({"$date": f"{text}.{rest:03d}Z" if rest else f"{text}Z"})
    return Special({"$date": {"$numberLong": str(milliseconds)}})


def _binary(data: bytes, subtype: int) -> Special:
    return Special({"$binary": {"base64": b2a_base64(data, newline=False).decode("ascii"), "subType": f"{subtype:02x}"}})


def _regex(pattern: str, options: str) -> Special:
    return Special({"$regularExpression": {"pattern": pattern, "options": options}})


def _pointer(namespace: str, ident: bytes) -> Special:
    return Special({"$dbPointer": {"$ref": namespace, "$id": {"$oid": ident.hex()}}})


def decimal128(data: bytes) -> str:
    """IEEE 754 decimal128, binary integer significand, in the notation of the BSON specification."""
    low, high = _WIDE(data, 0)
    negative = high >> 63
    if high >> 58 & 0x1F == 0x1F:
        return "NaN"
    if high >> 58 & 0x1F == 0x1E:
        return "-Infinity" if negative else "Infinity"
    if high >> 61 & 3 == 3:
        # the significand would be above 10^34 - 1: such forms are zero
        exponent, significand = high >> 47 & 0x3FFF, 0
    else:
        exponent, significand = high >> 49 & 0x3FFF, (high & 0x1_FFFF_FFFF_FFFF) << 64 | low
        if significand >= 10**34:
            significand = 0
    return str(Decimal((negative, tuple(map(int, str(significand))), exponent - 6176)))


class WalkedDocument(msgspec.Struct):
    """A document with its spans, fault and notes.

    `size` is its length field, None if missing. `pairs` are the outermost elements, including repeated ones, `nested` the types of
    documents and arrays among these, by name; `fault` is the first problem, later ones are notes. Leaf `spans` tile the bytes; offsets
    count from the first byte of the document. `stopped`: the limit of values was reached.
    """

    size: int | None
    pairs: list[tuple[str, Any]]
    nested: dict[str, int]
    spans: list[Span]
    notes: list[str]
    fault: Fault | None
    trailing: bytes | None
    stopped: bool

    @property
    def value(self) -> Any:
        return _object(self.pairs)


def walk(
    data: bytes,
    start: int,
    end: int,
    *,
    size: int | None = None,
    missing: str = "bytes missing",
    shift: int = 0,
    inner_shift: int = 0,
    resume: bool = True,
    secret: Callable[[str, bool], bool] | None = None,
    values: ValueQuota | None = None,
    spans: bool = True,
    masked: Callable[[str], bool] | None = None,
) -> WalkedDocument:
    """Return the document data[start:end] with byte ranges and exact faults.

    `size`: its true size if its end is missing, for the reason `missing`. `shift`, `inner_shift`: added to the length of the outermost
    and of inner documents (4 for a writer that does not count the length itself). `resume`: continue behind damage where a length shows
    how. `secret`: whether the value at a path (and whether it is a document or array), with all below it, is replaced by its size.
    `values`: the quota of elements; `spans`: whether byte ranges are wanted. `masked`: whether a name is replaced by its size, too, as
    damage may have made it from a value.
    """
    walker = _Walker(data, start, end, missing, inner_shift, resume, secret, values or ValueQuota(VALUES), spans, masked)
    return walker.frame(end if size is None else start + size, shift)


def _object(pairs: list[tuple[str, Any]]) -> Any:
    document = dict(pairs)
    return document if len(document) == len(pairs) else [{"key": key, "value": value} for key, value in pairs]


class _Walker:
    """One pass over a document; `failed`: the bytes at the current position could not be read."""

    def __init__(
        self,
        data: bytes,
        origin: int,
        have: int,
        missing: str,
        shift: int,
        resume: bool,
        secret: Callable[[str, bool], bool] | None,
        values: ValueQuota,
        wanted: bool,
        masked: Callable[[str], bool] | None,
    ) -> None:
        self.data = data
        self.origin = origin
        self.have = have
        self.missing = missing
        self.shift = shift
        self.resume = resume
        self.secret = secret
        self.values = values
        self.wanted = wanted
        self.masked = masked
        self.spans = Spans()
        self.made = 0
        """Spans, or as many as there would be."""
        self.nested: dict[str, int] = {}
        self.notes: list[str] = []
        self.more_notes = 0
        self.fault: Fault | None = None
        self.failed = False
        self.stopped = False

    # Notes and faults

    def note(self, text: str) -> None:
        if len(self.notes) < NOTES_LIMIT:
            self.notes.append(text)
        else:
            self.more_notes += 1

    def complain(self, field: str, at: int, reason: str, as_fault: type[Fault] = Fault) -> None:
        if self.fault is None:
            self.fault = as_fault(field, at - self.origin, reason)
        else:
            self.note(f"{field} at byte {at - self.origin}: {reason}")

    def fail(self, field: str, at: int, reason: str) -> None:
        self.failed = True
        self.complain(field, at, reason)

    def stop(self, field: str, at: int, last: int) -> None:
        """Fail where another element begins and there are too many already."""
        self.failed = self.stopped = True
        self.complain(field, at, self.values.reason(f"{max(0, last - at)} bytes left"), Limited)

    def add(self, name: str, start: int, end: int, value: Any, depth: int, secret: bool = False) -> None:
        self.made += 1
        if self.wanted:
            self.spans.append(Span(name, start - self.origin, end - start, value, depth, True, None, secret))

    def enclose(self, index: int, name: str, start: int, end: int, depth: int) -> None:
        """Put a group span in front of those made since `index`."""
        self.made += 1
        if self.wanted:
            self.spans.insert(index, Span(name, start - self.origin, end - start, None, depth, False))

    def enough(self, at: int, count: int, bound: int, what: str, field: str) -> bool:
        """Whether `count` bytes from `at` lie before `bound` and were captured."""
        if at + count > bound:
            self.fail(field, at, f"{what} takes {count} bytes, {max(bound - at, 0)} left")
        elif at + count > self.have:
            self.fail(field, at, self.missing)
        return not self.failed

    def text(self, raw: bytes, field: str) -> str:
        try:
            return raw.decode()
        except UnicodeDecodeError:
            self.note(f"{field} is not UTF-8")
            return lossy(raw)

    # The documents

    def frame(self, limit: int, shift: int) -> WalkedDocument:
        """The outermost document, whose end is known from outside; what follows its final 00 is trailing."""
        data, start, have = self.data, self.origin, self.have
        pairs: list[tuple[str, Any]] = []
        size = trailing = None
        at = start
        if self.enough(at, 4, limit, "length", "size"):
            size = _INT32(data, at)[0]
            self.add("size", at, at + 4, size, 0)
            if size + shift != limit - start:
                self.complain("size", at, f"length says {size} bytes, {limit - start} are there")
            at = self.elements(at + 4, limit - 1, pairs, "", 0, 0, False, False)
            if not self.failed:
                self.add("end", at, at + 1, 0, 0)
                at += 1
                if at < limit:
                    trailing = data[at:have]
                    self.note(f"{limit - at} bytes after the end of the document")
                    if at < have:
                        self.add("trailing", at, have, trailing, 0)
                    if have < limit:
                        self.complain("trailing", have, self.missing)
        if self.failed and at < have and self.wanted:
            self.spans.end(at - start, data[at:have], None)
        if self.more_notes:
            self.notes.append(f"and {self.more_notes} more")
        self.spans.close()
        return WalkedDocument(size, pairs, self.nested, self.spans, self.notes, self.fault, trailing, self.stopped)

    def elements(
        self, at: int, last: int, pairs: list[tuple[str, Any]], path: str, nesting: int, depth: int, array: bool, hidden: bool
    ) -> int:
        """Read elements up to the final 00, which stands at `last` at the latest; returns where it is, or where reading failed."""
        data, have = self.data, self.have
        take = self.values.spend
        edge = min(last, have)
        while True:
            if at > last:
                self.fail(path or "frame", at, "no final 00")
                return at
            if at >= have:
                self.fail(path or "frame", at, self.missing)
                return at
            kind = data[at]
            if not kind:
                return at
            if not take(2 if kind in DOUBLE else 1):
                self.stop(path or "frame", at, last)
                return at
            stop = data.find(0, at + 1, edge)
            if stop < 0:
                self.fail(path or "frame", at, "name without final 00" if have >= last else self.missing)
                return at
            number = len(pairs)
            mask = False
            if array:
                name = f"[{number}]"
                field = f"{path}{name}"
            else:
                raw = data[at + 1 : stop]
                try:
                    name = raw.decode()
                except UnicodeDecodeError:
                    name = self.text(raw, f"name of element {number} of {path}" if path else f"name of element {number}")
                mask = self.masked is not None and self.masked(name)
                if mask:
                    name = f"<redacted {len(raw)} bytes>"
                short = name if len(name) <= NAME_SHOWN else f"{name[: NAME_SHOWN - 1]}…"
                field = f"{path}.{short}" if path else short
            if hidden:
                field = path
            index = self.made
            secret = hidden or (self.secret is not None and self.secret(field, kind in (0x03, 0x04)))
            if kind in (0x03, 0x04):
                value, following = self.inner(at, stop + 1, last, kind == 0x04, field, nesting, depth + 1, secret)
                if mask:
                    # its first span begins with the name
                    self.spans.hide(index)
                if index < self.made:
                    self.enclose(index, name, at, following, depth)
                    pairs.append((name, value))
                    if not depth:
                        self.nested[name] = kind
            elif kind == 0x0F and not (secret or mask):
                value, following = self.code_with_scope(at, stop + 1, last, field, nesting, depth + 1)
                if index < self.made:
                    self.enclose(index, name, at, following, depth)
                    pairs.append((name, value))
            else:
                value, following = self.scalar(kind, at, stop + 1, last, field)
                if self.failed:
                    return at
                if secret and kind != 0x0A:
                    value = f"<redacted {self.secret_size(kind, stop + 1, following)} bytes>"
                self.add(name, at, following, value, depth, mask or (secret and kind != 0x0A))
                pairs.append((name, value))
            at = following
            if self.failed:
                return at

    def secret_size(self, kind: int, at: int, end: int) -> int:
        """Return the bytes of the value alone: of a string without its length and final 00."""
        return end - at - 5 if kind in (0x02, 0x0D, 0x0E) else end - at

    def inner(self, start: int, at: int, last: int, array: bool, field: str, nesting: int, depth: int, hidden: bool) -> tuple[Any, int]:
        """Return the document at `at`, whose element begins at `start`, and where its parent continues.

        Its length is used if the document ends with 00 there; otherwise elements are read up to a final 00, like servers that ignore
        the length.
        """
        data, have = self.data, self.have
        if not self.enough(at, 4, last, "length", field):
            return None, start
        size = _INT32(data, at)[0]
        end = at + size + self.shift
        reason = None
        if end < at + 5:
            reason = f"length says {size} bytes, no document has fewer than {5 - self.shift}"
        elif end > last:
            reason = f"length says {size} bytes, {max(last - at - self.shift, 0)} left"
        elif end <= have and data[end - 1]:
            reason = f"length says {size} bytes, but the last of them is {data[end - 1]:02x}, not 00"
        believed = reason is None
        if nesting >= NESTING_LIMIT:
            self.fail(field, at, f"more than {NESTING_LIMIT} documents inside each other")
            if not believed or end > have or not self.resume:
                return None, start
            self.add("length", start, at + 4, size, depth)
            self.add("undecoded", at + 4, end, None, depth, hidden)
            self.failed = False
            return None, end
        if reason is not None:
            self.fail(field, at, reason)
            if not self.resume:
                return None, start
            self.failed = False
        self.add("length", start, at + 4, size, depth)
        pairs: list[tuple[str, Any]] = []
        here = self.elements(at + 4, end - 1 if believed else last, pairs, field, nesting + 1, depth, array, hidden)
        if not self.failed:
            self.add("end", here, here + 1, 0, depth)
            here += 1
            if believed and here != end:
                self.complain(field, at, f"length says {size} bytes, its elements end after {here - at - self.shift}")
                self.failed = not self.resume
        elif believed and self.resume and end <= have and not self.stopped:
            if here < end:
                self.add("undecoded", here, end, None, depth, hidden)
            here = end
            self.failed = False
        value = [item for _, item in pairs] if array else _object(pairs)
        return value, here

    def code_with_scope(self, start: int, at: int, last: int, field: str, nesting: int, depth: int) -> tuple[Any, int]:
        data = self.data
        if not self.enough(at, 4, last, "length", field):
            return None, start
        size = _INT32(data, at)[0]
        text, here = self.string(at + 4, last, field)
        if self.failed:
            return None, start
        self.add("code", start, here, text, depth)
        index = self.made
        scope, end = self.inner(here, here, last, False, f"{field}.$scope", nesting, depth + 1, False)
        if index < self.made:
            self.enclose(index, "scope", here, end, depth)
        if not self.failed and size + self.shift != end - at:
            self.complain(field, at, f"length says {size} bytes, {end - at - self.shift} are there")
            self.failed = not self.resume
        return Special({"$code": text, "$scope": scope}), end

    # The values

    def string(self, at: int, last: int, field: str) -> tuple[str, int]:
        data = self.data
        if not self.enough(at, 4, last, "length", field):
            return "", at
        size = _INT32(data, at)[0]
        end = at + 4 + size
        if size < 1:
            self.fail(field, at, f"length says {size} bytes, no string has fewer than 1")
        elif end > last:
            self.fail(field, at, f"length says {size} bytes, {last - at - 4} left")
        elif end > self.have:
            self.fail(field, at, self.missing)
        elif data[end - 1]:
            self.fail(field, at, f"length says {size} bytes, but the last of them is {data[end - 1]:02x}, not 00")
        if self.failed:
            return "", at
        return self.text(data[at + 4 : end - 1], field), end

    def scalar(self, kind: int, start: int, at: int, last: int, field: str) -> tuple[Any, int]:
        """The value at `at` and where the next element begins; `start` is where its own does."""
        data = self.data
        fixed = _FIXED.get(kind)
        if fixed is not None:
            count, read = fixed
            if count and not self.enough(at, count, last, TYPES[kind], field):
                return None, start
            return read(data, at), at + count
        match kind:
            case 0x08:
                if not self.enough(at, 1, last, "boolean", field):
                    return None, start
                value = data[at]
                if value > 1:
                    self.note(f"{field}: boolean is {value:02x}")
                    return value, at + 1
                return value == 1, at + 1
            case 0x02 | 0x0C | 0x0D | 0x0E:
                text, end = self.string(at, last, field)
                if self.failed:
                    return None, start
                if kind == 0x02:
                    return text, end
                if kind in _TEXTS:
                    return Special({_TEXTS[kind]: text}), end
                if not self.enough(end, 12, last, "DBPointer", field):
                    return None, start
                return _pointer(text, data[end : end + 12]), end + 12
            case 0x05:
                return self.binary(start, at, last, field)
            case 0x0B:
                texts = []
                for _ in range(2):
                    end = data.find(0, at, min(last, self.have))
                    if end < 0:
                        self.fail(field, at, "regex without final 00" if self.have >= last else self.missing)
                        return None, start
                    texts.append(self.text(data[at:end], field))
                    at = end + 1
                return _regex(*texts), at
            case 0x0F:
                # only for a secret, whose inside is not shown
                if not self.enough(at, 4, last, "length", field):
                    return None, start
                size = _INT32(data, at)[0]
                if size < 14:
                    self.fail(field, at, f"length says {size} bytes, no code with scope has fewer than 14")
                elif self.enough(at, size, last, "code with scope", field):
                    return None, at + size
                return None, start
        self.fail(field, start, f"unknown element type {kind:02x}")
        return None, start

    def binary(self, start: int, at: int, last: int, field: str) -> tuple[Any, int]:
        data = self.data
        if not self.enough(at, 5, last, "binary", field):
            return None, start
        size = _INT32(data, at)[0]
        if size < 0:
            self.fail(field, at, f"length says {size} bytes")
            return None, start
        end = at + 5 + size
        if end > last:
            self.fail(field, at, f"length says {size} bytes, {last - at - 5} left")
        elif end > self.have:
            self.fail(field, at, self.missing)
        if self.failed:
            return None, start
        subtype = data[at + 4]
        if subtype != 2:
            return _binary(data[at + 5 : end], subtype), end
        if size < 4 or _INT32(data, at + 5)[0] != size - 4:
            self.note(f"{field}: inner length of old binary does not fit")
            return _binary(data[at + 5 : end], subtype), end
        return _binary(data[at + 9 : end], subtype), end


def _read_double(data: bytes, at: int) -> Any:
    value = _DOUBLE(data, at)[0]
    return _not_finite(value) if value - value else value


def _read_timestamp(data: bytes, at: int) -> Special:
    increment, seconds = _PAIR(data, at)
    return Special({"$timestamp": {"t": seconds, "i": increment}})


_FIXED: Final[dict[int, tuple[int, Callable[[bytes, int], Any]]]] = {
    0x01: (8, _read_double),
    0x06: (0, lambda _data, _at: Special({"$undefined": True})),
    0x07: (12, lambda data, at: Special({"$oid": data[at : at + 12].hex()})),
    0x09: (8, lambda data, at: _datetime(_INT64(data, at)[0])),
    0x0A: (0, lambda _data, _at: None),
    0x10: (4, lambda data, at: _INT32(data, at)[0]),
    0x11: (8, _read_timestamp),
    0x12: (8, lambda data, at: _INT64(data, at)[0]),
    0x13: (16, lambda data, at: Special({"$numberDecimal": decimal128(data[at : at + 16])})),
    0x7F: (0, lambda _data, _at: Special({"$maxKey": 1})),
    0xFF: (0, lambda _data, _at: Special({"$minKey": 1})),
}
"""Size and reader of the values of fixed size, by type."""
