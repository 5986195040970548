"""The words of a field table: wire types, fields, layouts. Plain declarations; reading is elsewhere.

A length or a count is either a number type in front of its bytes (`Text(i16)`) or the name of an earlier field of the
same object or of one around it (`Text("name_length")`). A tuple of fields stands for an object wherever an item is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal

from streamdump.model import VALUES

if TYPE_CHECKING:
    from streamdump.layout.walk import Walker

BytesAs = Literal["hex", "base64", "text", "omit", "raw"]
Labels = Mapping[int, str]


@dataclass(frozen=True, slots=True)
class Style:
    """How values are rendered: bytes as text of some form ("raw" leaves `bytes` objects), secrets hidden or shown; and how many of them
    a frame may have in lists."""

    bytes_as: BytesAs = "hex"
    show_secrets: bool = False
    values: int = VALUES


@dataclass(frozen=True, eq=False, slots=True)
class Number:
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


@dataclass(frozen=True, eq=False, slots=True)
class Text:
    """UTF-8 behind its length in bytes; a length equal to `null` means no value."""

    length: Number | str
    null: int | None = None


@dataclass(frozen=True, eq=False, slots=True)
class Blob:
    """Bytes behind their length; a length equal to `null` means no value."""

    length: Number | str
    null: int | None = None


@dataclass(frozen=True, eq=False, slots=True)
class Fixed:
    """So many bytes."""

    size: int


@dataclass(frozen=True, eq=False, slots=True)
class FixedText:
    """UTF-8 of so many bytes."""

    size: int


@dataclass(frozen=True, eq=False, slots=True)
class Rest:
    """All bytes to the end of the frame or of the `Sized` region."""


@dataclass(frozen=True, eq=False, slots=True)
class RestText:
    """UTF-8 to the end of the frame or of the `Sized` region."""


class Bits:
    """A number cut into parts, from the highest bit down: `Bits(u8, ("magic", 4), ("version", 4))`, an object of integers.

    A part may bring labels: `("compression", 3, COMPRESSIONS)`. The widths add up to the number's.
    """

    __slots__ = ("number", "parts")

    def __init__(self, number: Number, *parts: tuple[str, int] | tuple[str, int, Labels]) -> None:
        self.number = number
        self.parts: list[tuple[str, int, int, Labels | None]] = []
        """Name, shift to the right, mask, labels."""
        _require(not number.floating and not number.signed and number.size <= 8 and number is not boolean, "bits of an unsigned integer")
        left = number.size * 8
        for name, width, *labels in parts:
            left -= width
            _require(name.isidentifier() and width > 0, f"bad part {name!r} of {width} bits")
            self.parts.append((name, left, (1 << width) - 1, labels[0] if labels else None))
        _require(left == 0, f"parts leave {left} bits of {number.name}")


class Array:
    """A count and so many items."""

    __slots__ = ("count", "item")

    def __init__(self, item: Type | tuple[Entry, ...], count: Number | str) -> None:
        self.item = _item(item)
        self.count = count


class Repeat:
    """Items to the end of the frame or of the `Sized` region."""

    __slots__ = ("item",)

    def __init__(self, item: Type | tuple[Entry, ...]) -> None:
        self.item = _item(item)


class Group:
    """A nested object."""

    __slots__ = ("fields", "readers")

    def __init__(self, *fields: Entry) -> None:
        self.fields = fields
        self.readers: dict[Style, Callable[[bytes, int, int], tuple[dict[str, Any], int]]] = {}
        _check_names(fields)


class Sized:
    """A length in bytes and that many bytes, which hold one `content`; an object may leave some over (`trailing`)."""

    __slots__ = ("content", "length")

    def __init__(self, length: Number | str, content: Type | tuple[Entry, ...]) -> None:
        self.length = length
        self.content: Type = Group(*content) if isinstance(content, tuple) else content


class Choice:
    """What follows depends on an earlier field of this object or of one around it.

    An alternative is a type, whose value goes under the field's own name, or a tuple of fields, which become fields of the parent
    (the field's own name is then not used; a `Choice` of tuples only may stand without a `Field` around it). Other values of the
    discriminator take `otherwise`, or else nothing: the key is absent.
    """

    __slots__ = ("alternatives", "discriminator", "otherwise")

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
    """A tail that is there only when bytes are left; an entry of a field list, its fields become the parent's."""

    __slots__ = ("fields",)

    def __init__(self, *fields: Entry) -> None:
        self.fields = fields


Read = Callable[[bytes, int, int, Style], tuple[Any, int]]
Walk = Callable[[bytes, int, int, "Walker", str, int], tuple[Any, int]]


@dataclass(frozen=True, eq=False, slots=True)
class Custom:
    """A part that a table cannot say, written by hand.

    `read(buf, at, end, style)` gives value and new position, and raises one of `UNREADABLE` on bad bytes.
    `walk(buf, at, end, walker, name, depth)` gives the same and adds spans that tile what it took: see `Walker`.
    `minimum` is the least number of bytes it takes (it bounds counts of arrays), `element` the least that one of its lists has for each
    element, 0 where it has no list or counts by itself; `secret`: there may be secrets in it, which it hides itself. `write` is the
    inverse of `read` for fixtures (without it the wire bytes are given as the value), `samples` are good wire forms for the property
    tests.
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


@dataclass(frozen=True, eq=False, slots=True)
class Field:
    """A named value. `labels` add a key `<name>_label`; a `secret` is replaced by its size unless secrets are shown.

    `closed`: the labels are all the values there are, so another one is noted.

    `default` is for `encode`, where the value is not given: a value, or a function of the number of bytes that follow the field
    (see `following`).
    """

    name: str
    type: Type
    note: str = ""
    labels: Labels | None = None
    secret: bool = False
    default: Any = None
    closed: bool = False

    def __post_init__(self) -> None:
        _require(self.name.isidentifier(), f"{self.name!r} is no field name")
        labelled = self.type.item if isinstance(self.type, Array | Repeat) else self.type
        _require(self.labels is None or _whole(labelled) or isinstance(labelled, Choice), f"{self.name} cannot have labels")


class Since:
    """Entries that are there from version `first` on and not any more from `until` on; `versions.at` chooses, before a layout is made."""

    __slots__ = ("fields", "first", "until")

    def __init__(self, first: int, until: int, *fields: Entry) -> None:
        self.first = first
        self.until = until
        self.fields = fields


Entry = Field | Optional | Choice | Since


def following(count: int) -> int:
    """The default of a size field that counts the bytes behind it: `Field("size", u32, default=following)`."""
    return count


class Layout:
    """The fields of one message in wire order, complete. `key` is the protocol's command number, `info` sums the fields up in a line."""

    __slots__ = ("decoders", "fields", "info", "key", "kind", "name", "note", "secret")

    def __init__(
        self,
        name: str,
        *fields: Entry,
        kind: Literal["request", "response", "one_way"] = "request",
        key: int | str | None = None,
        note: str = "",
        info: Callable[[dict[str, Any]], str] | None = None,
    ) -> None:
        self.name = name
        self.fields = fields
        self.kind = kind
        self.key = key
        self.note = note
        self.info = info
        self.secret = any(map(has_secret, fields))
        self.decoders: dict[Style, Callable[[bytes, int, int], dict[str, Any]]] = {}
        try:
            _check_names(fields)
            _check_references(fields, frozenset())
            _check_greedy(fields, last=True)
        except ValueError as error:
            raise ValueError(f"layout {name}: {error}") from None

    def __repr__(self) -> str:
        return f"<Layout {self.name} {self.kind}>"


def minimum(part: Type | Entry | Sequence[Entry]) -> int:
    """The least number of bytes `part` takes."""
    match part:
        case Number() | Fixed() | FixedText() as sized:
            return sized.size
        case Bits(number=number):
            return number.size
        case Text(length=prefix) | Blob(length=prefix) | Sized(length=prefix) | Array(count=prefix):
            return prefix.size if isinstance(prefix, Number) else 0
        case Custom(minimum=least):
            return least
        case Group(fields=fields) | Since(fields=fields):
            return minimum(fields)
        case Field(type=kind):
            return minimum(kind)
        case tuple() | list():
            return sum(map(minimum, part))
        case _:
            return 0


def thinnest(part: Type | Entry | Sequence[Entry]) -> int:
    """The least number of bytes that an element of any list in `part` takes, without the elements of lists in it; 0 without a list."""
    found = [
        minimum(one.item) if isinstance(one, Array | Repeat) else one.element
        for one in parts_of(part)
        if isinstance(one, Array | Repeat | Custom)
    ]
    return min((size for size in found if size), default=0)


def has_secret(part: Type | Entry | Sequence[Entry]) -> bool:
    return any(field.secret for field in parts_of(part) if isinstance(field, Field | Custom))


def has_custom(part: Type | Entry | Sequence[Entry]) -> bool:
    return any(isinstance(found, Custom) for found in parts_of(part))


def is_closed(group: Group) -> bool:
    """Whether all fields that are referred to in an object are its own."""
    try:
        _check_references(group, frozenset())
    except ValueError:
        return False
    return True


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
"""What a part is made of, by its class."""


def parts_of(part: Type | Entry | Sequence[Entry]) -> list[Type | Entry]:
    """All fields and types that `part` is made of, itself first."""
    # With a stack of its own, as each decoder asks for this
    found: list[Type | Entry] = []
    left: list[Any] = [part]
    while left:
        one = left.pop()
        if isinstance(one, tuple | list):
            left += reversed(one)
            continue
        found.append(one)
        inner = _INNER.get(type(one))
        if inner is not None:
            left.append(inner(one))
    return found


def _require(condition: bool, what: str) -> None:
    """A wrong table is a bug of our own source: it fails when the module is imported."""
    if not condition:
        raise ValueError(what)


def _whole(kind: Type) -> bool:
    """Whether the bare value is an integer that labels, counts and choices can use."""
    return isinstance(kind, Number) and not kind.floating and kind.code != "16s"


def _item(item: Type | tuple[Entry, ...]) -> Type:
    made = Group(*item) if isinstance(item, tuple) else item
    _require(not isinstance(made, Choice | Rest | RestText | Repeat), f"no array of {type(made).__name__}")
    # A count that no byte of the frame pays for could not be told from a lie.
    _require(minimum(made) > 0, "an item takes at least one byte")
    return made


def _check_names(fields: Sequence[Entry]) -> set[str]:
    """All keys an object can have; none twice, except in alternatives that exclude each other."""
    names: set[str] = set()
    for entry in fields:
        new: set[str] = set()
        inlined: Sequence[Type | tuple[Entry, ...]] = ()
        match entry:
            case Optional(fields=tail):
                inlined = [tail]
            case Choice():
                inlined = entry.branches()
            case Field(type=Choice() as choice):
                inlined = choice.branches()
        if isinstance(entry, Field):
            new |= {entry.name} if entry.labels is None else {entry.name, f"{entry.name}_label"}
        for branch in inlined:
            if isinstance(branch, tuple):
                new |= _check_names(branch)
            else:
                _require(isinstance(entry, Field), "a choice without a field around it has tuples of fields only")
                _require(not isinstance(branch, Choice), "a choice in a choice is a field of a tuple")
        _require(not new & names, f"{', '.join(sorted(new & names))} twice")
        _require("trailing" not in new, "`trailing` is what is left over")
        names |= new
    return names


def _check_references(part: Type | Sequence[Entry], known: frozenset[str]) -> frozenset[str]:
    """Every field that is referred to is an earlier number of this object or of one around it; returns what is known behind `part`."""
    match part:
        case tuple() | list():
            for entry in part:
                match entry:
                    case Field(name=name, type=kind):
                        known = _check_references(kind, known)
                        if isinstance(kind, Text) or _whole(kind):
                            known |= {name}
                    case Optional(fields=fields):
                        _check_references(fields, known)
                    case Choice():
                        _check_references(entry, known)
        case Text(length=str() as name) | Blob(length=str() as name) | Sized(length=str() as name) | Array(count=str() as name):
            _require(name in known, f"no field {name} before its use")
        case _:
            pass
    match part:
        case Choice(discriminator=name):
            _require(name in known, f"no field {name} before its use")
            for branch in part.branches():
                _check_references(branch, known)
        case Array(item=inner) | Repeat(item=inner) | Sized(content=inner):
            _check_references(inner, known)
        case Group(fields=fields):
            _check_references(fields, known)
        case _:
            pass
    return known


def _check_greedy(part: Type | Sequence[Entry], last: bool) -> None:
    """What takes all bytes to the end stands at the end."""
    match part:
        case tuple() | list():
            for place, entry in enumerate(part):
                final = last and place == len(part) - 1
                match entry:
                    case Field(type=kind):
                        _check_greedy(kind, final)
                    case Optional(fields=fields):
                        _require(last and all(isinstance(one, Optional) for one in part[place:]), "fields behind an optional tail")
                        _check_greedy(fields, final)
                    case Choice():
                        _check_greedy(entry, final)
        case Rest() | RestText() | Repeat():
            _require(last, f"fields behind {type(part).__name__}")
        case Choice():
            for branch in part.branches():
                _check_greedy(branch, last)
        case Group(fields=fields):
            _check_greedy(fields, last)
        case Array(item=inner):
            _check_greedy(inner, False)
        case Sized(content=inner):
            _check_greedy(inner, True)
        case _:
            pass
    if isinstance(part, Repeat):
        _check_greedy(part.item, False)
