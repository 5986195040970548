"""Declarations for field tables: wire types, fields, layouts.

A length or count is either a number type before its bytes (`Text(i16)`) or the name of an earlier field of the same
object or an enclosing one (`Text("name_length")`). A tuple of fields is accepted as an object wherever an item is.

Tables are not validated at run time, as they are part of the source: the tests check each of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec

from ..model import VALUES

if TYPE_CHECKING:
    from .walker import Walker

BytesAs = Literal["hex", "base64", "text", "omit", "raw"]
Labels = Mapping[int, str]


class Style(msgspec.Struct, frozen=True, cache_hash=True):
    """How values are rendered: bytes as text of some form ("raw" leaves `bytes` objects), secrets hidden or shown; and the maximum number
    of list elements per frame."""

    bytes_as: BytesAs = "hex"
    show_secrets: bool = False
    values: int = VALUES


class Number(msgspec.Struct, frozen=True, eq=False):
    """A fixed-size number; `code` is `struct`'s letter, or "16s" for the 128-bit ones, which decode to decimal strings."""

    name: str
    code: str
    size: int
    order: Literal[">", "<"] = ">"
    signed: bool = False

    @property
    def floating(self) -> bool:
        return self.code in "fd"


u8 = Number("uint8", "B", 1)
i8 = Number("int8", "b", 1, signed=True)
u16 = Number("uint16", "H", 2)
i16 = Number("int16", "h", 2, signed=True)
u32 = Number("uint32", "I", 4)
i32 = Number("int32", "i", 4, signed=True)
u64 = Number("uint64", "Q", 8)
i64 = Number("int64", "q", 8, signed=True)
u128 = Number("uint128", "16s", 16)
f32 = Number("float32", "f", 4, signed=True)
f64 = Number("float64", "d", 8, signed=True)
u16le = Number("uint16le", "H", 2, "<")
i16le = Number("int16le", "h", 2, "<", signed=True)
u32le = Number("uint32le", "I", 4, "<")
i32le = Number("int32le", "i", 4, "<", signed=True)
u64le = Number("uint64le", "Q", 8, "<")
i64le = Number("int64le", "q", 8, "<", signed=True)
u128le = Number("uint128le", "16s", 16, "<")
f32le = Number("float32le", "f", 4, "<", signed=True)
f64le = Number("float64le", "d", 8, "<", signed=True)

boolean = Number("boolean", "?", 1)
"""One byte, 0 or 1; another value keeps its number and is noted."""


class Text(msgspec.Struct, frozen=True, eq=False):
    """UTF-8 after its length in bytes; a length equal to `null` means no value."""

    length: Number | str
    null: int | None = None


class Blob(msgspec.Struct, frozen=True, eq=False):
    """Bytes after their length; a length equal to `null` means no value."""

    length: Number | str
    null: int | None = None


class Fixed(msgspec.Struct, frozen=True, eq=False):
    """`size` bytes."""

    size: int


class FixedText(msgspec.Struct, frozen=True, eq=False):
    """UTF-8 of `size` bytes."""

    size: int


class Rest(msgspec.Struct, frozen=True, eq=False):
    """All bytes to the end of the frame or of the `Sized` region."""


class RestText(msgspec.Struct, frozen=True, eq=False):
    """UTF-8 to the end of the frame or of the `Sized` region."""


class Bits:
    """A number split into parts, from the highest bit down: `Bits(u8, ("magic", 4), ("version", 4))`, an object of integers.

    A part may have labels: `("compression", 3, COMPRESSIONS)`. The widths add up to the number's.
    """

    def __init__(self, number: Number, *parts: tuple[str, int] | tuple[str, int, Labels]) -> None:
        self.number = number
        self.parts: list[tuple[str, int, int, Labels | None]] = []
        """Name, shift to the right, mask, labels."""
        left = number.size * 8
        for name, width, *labels in parts:
            left -= width
            self.parts.append((name, left, (1 << width) - 1, labels[0] if labels else None))


class Array:
    """A count and that number of items."""

    def __init__(self, item: Type | tuple[Entry, ...], count: Number | str) -> None:
        self.item = typed(item)
        self.count = count


class Repeat:
    """Items to the end of the frame or of the `Sized` region."""

    def __init__(self, item: Type | tuple[Entry, ...]) -> None:
        self.item = typed(item)


class Group:
    """A nested object."""

    def __init__(self, *fields: Entry) -> None:
        self.fields = fields
        self.readers: dict[Style, Callable[[bytes, int, int], tuple[dict[str, Any], int]]] = {}


class Sized:
    """A length and that number of bytes, with one `content`; an object may leave bytes over (`trailing`)."""

    def __init__(self, length: Number | str, content: Type | tuple[Entry, ...]) -> None:
        self.length = length
        self.content = typed(content)


class Choice:
    """A value whose type depends on an earlier field of this object or an enclosing one.

    An alternative is a type, whose value goes under the field's own name, or a tuple of fields, which become fields of the parent
    (the field's own name is then unused; a `Choice` of tuples needs no `Field` around it). Other values of the
    discriminator select `otherwise`, or else nothing: the key is absent.
    """

    def __init__(
        self,
        discriminator: str,
        alternatives: Mapping[int, Type | tuple[Entry, ...]] | Mapping[str, Type | tuple[Entry, ...]],
        otherwise: Type | tuple[Entry, ...] | None = None,
    ) -> None:
        self.discriminator = discriminator
        self.alternatives: dict[int | str, Type | tuple[Entry, ...]] = dict(alternatives.items())
        self.otherwise = otherwise

    def branches(self) -> list[Type | tuple[Entry, ...]]:
        return [*self.alternatives.values(), *([] if self.otherwise is None else [self.otherwise])]


class Optional:
    """A tail that is present only if bytes are left; its fields become fields of the parent."""

    def __init__(self, *fields: Entry) -> None:
        self.fields = fields


Read = Callable[[bytes, int, int, Style], tuple[Any, int]]
Walk = Callable[[bytes, int, int, "Walker", str, int], tuple[Any, int]]


class Custom(msgspec.Struct, frozen=True, eq=False):
    """A part that a table cannot express, written by hand.

    `read(buf, at, end, style)` returns value and new position, and raises one of `UNREADABLE` on bad bytes.
    `walk(buf, at, end, walker, name, depth)` returns the same and adds spans that tile the bytes read: see `Walker`.
    `minimum`: the minimum size in bytes (it bounds counts of arrays); `element`: the minimum size of an element of its lists, 0 if it
    has no list or counts by itself; `secret`: it may contain secrets, which it hides itself. `write` is the inverse of `read` for
    fixtures (without it the value is given as wire bytes), `samples` are valid wire forms for the property tests.
    """

    read: Read
    walk: Walk
    name: str = "custom"
    minimum: int = 1
    element: int = 0
    secret: bool = False
    write: Callable[[Any], bytes] | None = None
    samples: tuple[bytes, ...] = ()


Type = Number | Text | Blob | Fixed | FixedText | Rest | RestText | Bits | Array | Repeat | Group | Sized | Choice | Custom


class Field(msgspec.Struct, frozen=True, eq=False):
    """A named value. `labels` add a key `<name>_label`; a `secret` is replaced by its size unless secrets are shown.

    `closed`: the labels list all values, so another one is noted.

    `default` is for `encode`, if no value is given: a value, or a function of the number of bytes after the field
    (see `following`).
    """

    name: str
    type: Type
    note: str = ""
    labels: Labels | None = None
    secret: bool = False
    default: Any = None
    closed: bool = False


class Since:
    """Entries of the versions from `first` to before `until`; `versions.at` chooses before a layout is made."""

    def __init__(self, first: int, until: int, *fields: Entry) -> None:
        self.first = first
        self.until = until
        self.fields = fields


Entry = Field | Optional | Choice | Since


def following(count: int) -> int:
    """Return `count`; the default of a size field that counts the bytes after it: `Field("size", u32, default=following)`."""
    return count


class Layout:
    """The fields of one message in wire order, complete. `key` is the protocol's command number, `info` returns a summary of the fields."""

    def __init__(
        self,
        name: str,
        *fields: Entry,
        kind: Literal["request", "response", "one_way"] = "request",
        key: int | str | None = None,
        note: str = "",
        info: Callable[[dict[str, Any]], str] | None = None,
        parts: tuple[tuple[Entry, ...], ...] = (),
        answers: bool = False,
    ) -> None:
        """`parts`: the same fields, divided where layouts share some; no part refers to a field of another. `answers`: it may be a
        response, whatever its `kind`."""
        self.name = name
        self.fields = fields
        self.kind = kind
        self.key = key
        self.note = note
        self.info = info
        self.secret = facts(fields).secret
        self.decoders: dict[Style, Callable[[bytes, int, int], dict[str, Any]]] = {}
        self.parts = parts or (fields,)
        self.answers = answers

    def __repr__(self) -> str:
        return f"<Layout {self.name} {self.kind}>"


def typed(item: Type | tuple[Entry, ...]) -> Type:
    """Return a type, or the object for a tuple of fields."""
    return Group(*item) if isinstance(item, tuple) else item


class Facts(NamedTuple):
    """Static properties of a part of a table."""

    least: int
    """Its minimum size in bytes."""
    element: int
    """The minimum size of an element of any list in it, without nested elements; 0 without a list."""
    secret: bool
    """Whether it contains secrets."""
    custom: bool
    """Whether it contains a `Custom`."""


@cache
def facts(part: Type | Entry | tuple[Entry, ...]) -> Facts:
    """Return the properties of a part; cached, as layouts share parts."""
    inner = [facts(one) for one in inside(part)]
    least, element = sum([one.least for one in inner]), 0
    match part:
        case Number(size=least) | Fixed(size=least) | FixedText(size=least) | Bits(number=Number(size=least)):
            pass
        case Text(length=prefix) | Blob(length=prefix) | Sized(length=prefix) | Array(count=prefix):
            element = least if isinstance(part, Array) else 0
            least = prefix.size if isinstance(prefix, Number) else 0
        case Custom(minimum=least, element=element):
            pass
        case Repeat() | Choice() | Optional():
            element = least if isinstance(part, Repeat) else 0
            least = 0
    elements = [size for size in (element, *[one.element for one in inner]) if size]
    secret = isinstance(part, Field | Custom) and part.secret
    custom = isinstance(part, Custom) or any(one.custom for one in inner)
    return Facts(least, min(elements, default=0), secret or any(one.secret for one in inner), custom)


def minimum(part: Type | Entry | tuple[Entry, ...]) -> int:
    """Return the minimum size of `part` in bytes."""
    return facts(part).least


def has_secret(part: Type | Entry | tuple[Entry, ...]) -> bool:
    return facts(part).secret


def is_closed(group: Group) -> bool:
    """Return whether all fields that an object refers to are in it."""
    parts = parts_of(group)
    asked = {getattr(one, key) for one in parts for key in ("length", "count", "discriminator") if isinstance(getattr(one, key, None), str)}
    return asked <= {one.name for one in parts if isinstance(one, Field)}


_INNER: dict[type, Callable[[Any], Any]] = {
    Field: attrgetter("type"),
    Array: attrgetter("item"),
    Repeat: attrgetter("item"),
    Sized: attrgetter("content"),
    Group: attrgetter("fields"),
    Optional: attrgetter("fields"),
    Since: attrgetter("fields"),
    Choice: lambda choice: tuple(choice.branches()),
}
"""The components of a part, by its class."""


def inside(part: Type | Entry | tuple[Entry, ...]) -> tuple[Any, ...]:
    """Return the direct components of a part."""
    if isinstance(part, tuple):
        return part
    inner = _INNER.get(type(part))
    return () if inner is None else (inner(part),)


def parts_of(part: Type | Entry | tuple[Entry, ...]) -> list[Type | Entry]:
    """Return all fields and types in `part`, itself first."""
    found: list[Type | Entry] = [] if isinstance(part, tuple) else [part]
    for one in inside(part):
        found += parts_of(one)
    return found
