"""Generates decoders from field tables: one function per layout and style, compiled on first use.

Optimisations: adjacent fixed fields, and arrays of numbers or of fixed objects, are one `struct` call; the object is one dict literal
unless a field depends on another; `at` moves only after values of variable size, otherwise a constant is added.

A fixed read may run past `end` into the next frame. This is detected at the end of the frame at the latest, because positions never
decrease; allocating or slicing compares with `end` first.
"""

from __future__ import annotations

import linecache
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from struct import Struct
from types import CodeType, FunctionType
from typing import Any, NamedTuple

from ..units import lossy, not_finite
from .types import (
    Array,
    Bits,
    Blob,
    Choice,
    Custom,
    Entry,
    Field,
    Fixed,
    FixedText,
    Group,
    Layout,
    Number,
    Optional,
    Repeat,
    Rest,
    RestText,
    Sized,
    Style,
    Text,
    Type,
    boolean,
    facts,
    is_closed,
    minimum,
)
from .values import RENDER, redacted
from .walker import walk

BRANCHES = 8
"""Alternatives from which on an object is read by a function of its own."""

WALKED, WALKED_SIZE = 4, 512
"""Frames, and their maximum bytes, that are walked before a decoder is compiled."""

_serial = count()

_codes: dict[str, CodeType] = {}
"""Compiled code by source: layouts that differ only in labels or names share it."""

_decoders: dict[tuple[tuple[Entry, ...], Style, bool], Callable[[bytes, int, int], dict[str, Any]]] = {}
"""Decoders by fields: many layouts differ only in their names."""


def decoder(layout: Layout, style: Style) -> Callable[[bytes, int, int], dict[str, Any]]:
    """Return `decode(buf, start, end)`, which returns the fields, with left-over bytes in `trailing`, or raises one of `UNREADABLE`."""
    made = layout.decoders.get(style)
    if made is None:
        made = layout.decoders[style] = _made(layout, style, False)
    return made


def exact_decoder(layout: Layout, style: Style) -> Callable[[bytes, int, int], dict[str, Any]]:
    """Return a decoder that also raises if bytes are left over."""
    return _made(layout, style, True)


def _made(layout: Layout, style: Style, exact: bool) -> Callable[[bytes, int, int], dict[str, Any]]:
    made = _decoders.get((layout.fields, style, exact))
    if made is None:
        made = _decoders[layout.fields, style, exact] = _lazy(layout, style, exact)
    return made


def _lazy(layout: Layout, style: Style, exact: bool) -> Callable[[bytes, int, int], dict[str, Any]]:
    """Return a decoder that is compiled after walking a few frames: compiling takes longer than that, and most layouts are rare. The
    function object stays the same, as callers keep it."""
    names: dict[str, Any] = {}
    left = WALKED

    def first(buf: bytes, start: int, end: int) -> dict[str, Any]:
        nonlocal left
        left -= 1
        if left >= 0 and end - start <= WALKED_SIZE:
            walked = walk(layout, buf, start, end, style)
            over = "trailing" in walked.fields
            # where walking makes notes, the decoder raises
            if not walked.notes and (exact or not over):
                if over or walked.fault is not None:
                    raise ValueError
                return walked.fields
        text, used = source(layout, style, exact)
        names.update(used)
        decode.__code__ = compiled((text, names), f"{layout.name} {layout.kind}").__code__
        fields: dict[str, Any] = decode(buf, start, end)
        return fields

    names["FIRST"] = first
    decode = FunctionType(_call_first.__code__, names)
    return decode


def _call_first(buf: bytes, at: int, end: int) -> dict[str, Any]:
    """The initial code of a decoder."""
    return FIRST(buf, at, end)  # type: ignore[name-defined,no-any-return]  # noqa: F821


def reader(group: Group, style: Style) -> Callable[[bytes, int, int], tuple[dict[str, Any], int]]:
    """Return `read(buf, at, end)`, which returns the object at `at` and its end, for hand-written parts."""
    made = group.readers.get(style)
    if made is None:
        made = group.readers[style] = compiled(_part_source(group, style), "group")
    return made


def source(layout: Layout, style: Style, exact: bool = False) -> tuple[str, dict[str, Any]]:
    """Return the source of the decoder and the names it uses."""
    maker = Maker(style)
    least = facts(layout.fields).element
    if least:
        # Frames that may exceed the limit of values are left to the walk, which counts them
        maker.refuse(f"end - at > {least * style.values}")
    value = maker.object(layout.fields)
    where = maker.where()
    if exact:
        maker.refuse(f"{where} != end")
        maker.emit(f"return {value}")
        return maker.source(), maker.names
    maker.emit(f"f = {value}")
    maker.emit(
        f"if {where} != end:",
        f"    LEFT(f, buf, {where}, end)",
        "return f",
    )
    maker.names["LEFT"] = _left_over(style, layout.secret and not style.show_secrets)
    return maker.source(), maker.names


def _part_source(group: Group, style: Style) -> tuple[str, dict[str, Any]]:
    maker = Maker(style)
    value = maker.object(group.fields)
    maker.settle()
    maker.refuse("at > end")
    maker.emit(f"return {value}, at")
    return maker.source(), maker.names


def compiled(made: tuple[str, dict[str, Any]], what: str) -> Callable[..., Any]:
    text, names = made
    code = _codes.get(text)
    if code is None:
        file = f"<layout {next(_serial)}: {what}>"
        # For tracebacks; without a modification time the entry is never considered stale.
        linecache.cache[file] = (len(text), None, text.splitlines(True), file)
        code = _codes[text] = compile(text, file, "exec")
    exec(code, names)
    function: Callable[..., Any] = names["decode"]
    return function


def _left_over(style: Style, hidden: bool) -> Callable[[dict[str, Any], bytes, int, int], None]:
    render = RENDER[style.bytes_as]

    def left_over(fields: dict[str, Any], buf: bytes, at: int, end: int) -> None:
        if at > end:
            raise ValueError
        fields["trailing"] = redacted(end - at) if hidden else render(buf[at:end])

    return left_over


class _Counted(dict[int, Callable[[bytes, int], tuple[Any, ...]]]):
    """`unpack_from` for N numbers of one kind; common counts are cached."""

    def __init__(self, order: str, code: str) -> None:
        self.order = order
        self.code = code

    def __missing__(self, size: int) -> Callable[[bytes, int], tuple[Any, ...]]:
        made = Struct(f"{self.order}{size}{self.code}").unpack_from
        if size <= 256:
            self[size] = made
        return made


class _Object:
    """An object being generated: pending keys, and the variable of the dict once it exists."""

    def __init__(self) -> None:
        self.pending: list[tuple[str, str]] = []
        self.variable: str | None = None

    def literal(self) -> str:
        return "{" + ", ".join(f"{key!r}: {value}" for key, value in self.pending) + "}"


class _Fixed(NamedTuple):
    """A field of fixed size: the variable of its value, its `struct` code, and its byte order, if any."""

    variable: str
    code: str
    size: int
    order: str


class _Function:
    """The lines of a function generated so far, and the current read position in them."""

    def __init__(self) -> None:
        self.names: dict[str, Any] = {"BOOL": (False, True), "NOT_FINITE": not_finite, "LOSSY": lossy, "BASE64": RENDER["base64"]}
        self.lines: list[str] = []
        self.indent = 1
        self.serial = count()
        self.ahead = 0
        """Bytes between `at` and the current read position."""
        self.run: list[_Fixed] = []
        """Adjacent fixed fields not yet read."""
        self.order = ""
        """Their byte order, once known."""
        self.left = ""
        """The last result of `leave`."""

    def source(self, parameters: str = "buf, at, end") -> str:
        return "\n".join([f"def decode({parameters}):", *self.lines, ""])

    def emit(self, *lines: str) -> None:
        self.flush()
        self.lines += ["    " * self.indent + line for line in lines]

    def refuse(self, condition: str) -> None:
        self.emit(f"if {condition}:", "    raise ValueError")

    def flush(self) -> None:
        """Read the adjacent fixed fields."""
        if not self.run:
            return
        run, self.run, self.order = self.run, [], ""
        where = self.where(-sum([one.size for one in run]))
        if len(run) == 1 and run[0].code == "B":
            self.emit(f"{run[0].variable} = buf[{where}]")
        else:
            self.emit(f"{_targets(run)} = {self.name('UNPACK', Struct(_format(run)).unpack_from)}(buf, {where})")

    def where(self, more: int = 0) -> str:
        ahead = self.ahead + more
        return f"at + {ahead}" if ahead else "at"

    def settle(self) -> None:
        """Move `at` to the current read position."""
        self.flush()
        if self.ahead:
            self.emit(f"at += {self.ahead}")
            self.ahead = 0

    def leave(self) -> str:
        """Store the current read position in a variable, as `at` is computed from it next; return the variable."""
        self.left = self.variable("a")
        self.emit(f"{self.left} = {self.where()}")
        self.ahead = 0
        return self.left

    def variable(self, letter: str = "v") -> str:
        return f"{letter}{next(self.serial)}"

    def name(self, kind: str, value: Any) -> str:
        """Return the name of a global of the function that has this value."""
        for name, known in self.names.items():
            if known is value and name.startswith(kind):
                return name
        name = f"{kind}{len(self.names)}"
        self.names[name] = value
        return name

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        """Generate lines under `head`; inside and after it, `at` is exact."""
        self.settle()
        self.emit(head)
        self.indent += 1
        before = len(self.lines)
        yield
        self.settle()
        if len(self.lines) == before:
            self.emit("pass")
        self.indent -= 1

    def fixed(self, code: str, size: int, order: str) -> str:
        """Add to the run of fixed fields; bytes and byte strings have no order."""
        if size == 1 or code.endswith("s"):
            order = ""
        if order and self.order not in ("", order):
            self.flush()
        self.order = order or self.order
        raw = self.variable()
        self.run.append(_Fixed(raw, code, size, order))
        self.ahead += size
        return raw


class Maker(_Function):
    """Generates the code that reads the fields of a layout."""

    def __init__(self, style: Style) -> None:
        super().__init__()
        self.style = style
        self.end = "end"
        self.scopes: list[dict[str, str]] = []
        """Field name to the variable of its raw value, for nested objects."""

    # Objects

    def object(self, fields: Sequence[Entry]) -> str:
        """Return an expression for the object, valid after the next flush."""
        made = _Object()
        self.scopes.append({})
        self.entries(fields, made)
        self.scopes.pop()
        if made.variable is None:
            return made.literal()
        self.write(made)
        return made.variable

    def write(self, made: _Object) -> None:
        """Write the pending keys into a dict that later lines extend."""
        if made.variable is None:
            made.variable = self.variable("o")
            self.emit(f"{made.variable} = {made.literal()}")
        else:
            for key, value in made.pending:
                self.emit(f"{made.variable}[{key!r}] = {value}")
        made.pending.clear()

    def entries(self, fields: Sequence[Entry], made: _Object) -> None:
        for entry in fields:
            match entry:
                case Field(type=Choice() as choice):
                    self.choice(choice, entry, made)
                case Field():
                    self.field(entry, entry.type, made)
                case Choice():
                    self.choice(entry, None, made)
                case Optional(fields=tail):
                    self.settle()
                    self.write(made)
                    with self.block(f"if at < {self.end}:"):
                        self.entries(tail, made)
                        self.write(made)

    def choice(self, choice: Choice, field: Field | None, made: _Object) -> None:
        self.settle()
        self.write(made)
        asked = self.reference(choice.discriminator)
        head = "if"
        for key, branch in choice.alternatives.items():
            with self.block(f"{head} {asked} == {key!r}:"):
                self.branch(branch, field, made)
            head = "elif"
        if choice.otherwise is not None:
            with self.block("else:" if choice.alternatives else "if True:"):
                self.branch(choice.otherwise, field, made)

    def branch(self, branch: Type | tuple[Entry, ...], field: Field | None, made: _Object) -> None:
        if isinstance(branch, tuple):
            self.entries(branch, made)
        else:
            assert field is not None
            self.field(field, branch, made)
        self.write(made)

    def field(self, field: Field, kind: Type, made: _Object) -> None:
        hidden = field.secret and not self.style.show_secrets
        value, raw = self.hidden(kind) if hidden else self.value(kind)
        made.pending.append((field.name, value))
        if raw is not None:
            self.scopes[-1][field.name] = raw
        if field.labels is not None:
            # A value outside a closed set raises, and the walk notes it
            label = self.name("LABEL", field.labels.__getitem__ if field.closed else field.labels.get)
            if hidden:
                text = "None"
            elif isinstance(kind, Array | Repeat):
                text = f"[{label}(x) for x in {value}]"
            else:
                text = f"{label}({raw})"
            made.pending.append((f"{field.name}_label", text))

    def reference(self, name: str) -> str:
        for scope in reversed(self.scopes):
            if name in scope:
                return scope[name]
        raise ValueError(f"no field {name}")

    # Values: an expression and, for fields that others may refer to, the variable of the raw value

    def value(self, kind: Type) -> tuple[str, str | None]:
        match kind:
            case Number():
                raw = self.fixed("B" if kind is boolean else kind.code, kind.size, kind.order)
                if kind is boolean:
                    return f"BOOL[{raw}]", raw
                if kind.floating:
                    return f"({raw} if {raw} - {raw} == 0 else NOT_FINITE({raw}))", None
                if kind.code == "16s":
                    return f"str(int.from_bytes({raw}, {'big' if kind.order == '>' else 'little'!r}))", None
                return raw, raw
            case Fixed(size=size):
                return self.rendered(self.fixed(f"{size}s", size, "")), None
            case FixedText(size=size):
                return f"{self.fixed(f'{size}s', size, '')}.decode()", None
            case Bits(number=number, parts=parts):
                word = self.fixed(number.code, number.size, number.order)
                cut = _Object()
                for name, shift, mask, labels in parts:
                    part = f"{word} >> {shift} & {mask}" if shift else f"{word} & {mask}"
                    cut.pending.append((name, part))
                    if labels is not None:
                        cut.pending.append((f"{name}_label", f"{self.name('LABEL', labels.get)}({part})"))
                return cut.literal(), None
            case Text() | Blob():
                return self.prefixed(kind, hidden=False)
            case Rest() | RestText():
                start = self.leave()
                self.refuse(f"{start} > {self.end}")
                value = self.variable()
                data = f"buf[{start}:{self.end}]"
                shown = f"{data}.decode()" if isinstance(kind, RestText) else self.rendered(data)
                self.emit(f"{value} = {shown}")
                self.at_end()
                return value, None
            case Array():
                return self.array(kind), None
            case Repeat():
                return self.repeat(kind), None
            case Group(fields=fields):
                return self.shared(kind) if _is_branched(kind) else self.object(fields), None
            case Sized():
                return self.region(kind), None
            case Custom():
                return self.custom(kind), None
            case Choice():
                raise ValueError("a choice is a field of its own")

    def rendered(self, data: str) -> str:
        match self.style.bytes_as:
            case "hex":
                return f"{data}.hex()"
            case "base64":
                return f"BASE64({data})"
            case "text":
                return f"LOSSY({data})"
            case "omit":
                return f"{self.name('OMIT', RENDER['omit'])}({data})"
            case "raw":
                return data

    def hidden(self, kind: Type) -> tuple[str, str | None]:
        """A secret that is read but not shown."""
        if isinstance(kind, Text | Blob):
            return self.prefixed(kind, hidden=True)
        if isinstance(kind, Number):
            return f"'{redacted(kind.size)}'", self.value(kind)[1]
        start = self.variable("a")
        self.emit(f"{start} = {self.where()}")
        raw = self.value(kind)[1]
        self.settle()
        shown = self.variable()
        self.emit(f"{shown} = f'<redacted {{at - {start}}} bytes>'")
        return shown, raw

    def length(self, length: Number | str) -> tuple[str, bool]:
        """Return the variable of a length or count, and whether it can be negative."""
        if isinstance(length, str):
            return self.reference(length), True
        return self.fixed(length.code, length.size, length.order), length.signed

    def prefixed(self, kind: Text | Blob, hidden: bool) -> tuple[str, str]:
        size, signed = self.length(kind.length)
        value = self.variable()
        start = self.leave()
        data = f"buf[{start}:at]"
        shown = f"{data}.decode()" if isinstance(kind, Text) else self.rendered(data)
        if hidden:
            shown = f"f'<redacted {{{size}}} bytes>'"
        if kind.null is None:
            self.emit(f"at = {start} + {size}")
            self.refuse(f"not {start} <= at <= {self.end}" if signed else f"at > {self.end}")
            self.emit(f"{value} = {shown}")
        elif kind.null < 0:
            # The common case first.
            self.emit(
                f"at = {start} + {size}",
                f"if {start} <= at <= {self.end}:",
                f"    {value} = {shown}",
                f"elif {size} == {kind.null}:",
                f"    {value} = None",
                f"    at = {start}",
                "else:",
                "    raise ValueError",
            )
        else:
            self.emit(
                f"if {size} == {kind.null}:",
                f"    {value} = None",
                f"    at = {start}",
                "else:",
                f"    at = {start} + {size}",
                f"    if not {start} <= at <= {self.end}:",
                "        raise ValueError",
                f"    {value} = {shown}",
            )
        return value, value

    def at_end(self) -> None:
        """Move `at` to the end."""
        self.emit(f"at = {self.end}")
        self.ahead = 0

    def flat(self, item: Type) -> tuple[str, list[_Fixed], int] | None:
        """Return expression, run and size of an item of fixed size and one byte order; None for others."""
        orders: set[str] = set()
        if not is_flat(item, orders) or len(orders) > 1:
            return None
        self.flush()
        ahead = self.ahead
        value, _ = self.value(item)
        run, self.run, self.order, self.ahead = self.run, [], "", ahead
        return value, run, minimum(item)

    def flat_items(self, flat: tuple[str, list[_Fixed], int], stop: str) -> str:
        """Return an expression for the items between `at` and `stop`."""
        value, run, _ = flat
        if [one.code for one in run] == ["B"] and value == run[0].variable:
            return f"list(buf[at:{stop}])"
        if len(run) == 1 and run[0].code == "B":
            return f"[{value} for {run[0].variable} in buf[at:{stop}]]"
        return f"[{value} for {_targets(run)} in {self.name('ITER', Struct(_format(run)).iter_unpack)}(buf[at:{stop}])]"

    def array(self, kind: Array) -> str:
        size, signed = self.length(kind.count)
        self.settle()
        items = self.variable()
        least = minimum(kind.item)
        flat = self.flat(kind.item)
        if flat is None:
            self.refuse(f"not 0 <= {size} * {least} <= {self.end} - at")
            self.emit(f"{items} = []")
            with self.block(f"for _ in range({size}):"):
                self.item(kind.item, items)
            return items
        stop = self.variable("a")
        self.emit(f"{stop} = at + {size} * {least}")
        self.refuse(f"not at <= {stop} <= {self.end}" if signed else f"{stop} > {self.end}")
        value, run, _ = flat
        if len(run) == 1 and value == run[0].variable and run[0].code in "bHhIiQq":
            counted = self.name("COUNTED", _Counted(run[0].order, run[0].code))
            self.emit(f"{items} = [*{counted}[{size}](buf, at)]")
        else:
            self.emit(f"{items} = {self.flat_items(flat, stop)}")
        self.emit(f"at = {stop}")
        return items

    def item(self, kind: Type, items: str) -> None:
        value, _ = self.value(kind)
        self.settle()
        self.emit(f"{items}.append({value})")

    def repeat(self, kind: Repeat) -> str:
        self.settle()
        items = self.variable()
        flat = self.flat(kind.item)
        if flat is not None:
            self.refuse(f"at > {self.end} or ({self.end} - at) % {flat[2]}")
            self.emit(f"{items} = {self.flat_items(flat, self.end)}")
            self.at_end()
            return items
        self.emit(f"{items} = []")
        with self.block(f"while at < {self.end}:"):
            start = self.variable("a")
            guarded = facts(kind.item).custom
            if guarded:
                self.emit(f"{start} = at")
            self.item(kind.item, items)
            if guarded:
                self.refuse(f"at == {start}")
        return items

    def region(self, kind: Sized) -> str:
        size, _ = self.length(kind.length)
        self.settle()
        stop = self.variable("e")
        self.emit(f"{stop} = at + {size}")
        self.refuse(f"not at <= {stop} <= {self.end}")
        around, self.end = self.end, stop
        value, _ = self.value(kind.content)
        self.settle()
        self.end = around
        # Left-over bytes need a note, which only the walk makes.
        self.refuse(f"at != {stop}")
        return value

    def shared(self, kind: Group) -> str:
        """Read an object with a function that layouts share."""
        self.settle()
        value = self.variable()
        self.emit(f"{value}, at = {self.name('READ', reader(kind, self.style))}(buf, at, {self.end})")
        return value

    def custom(self, kind: Custom) -> str:
        self.settle()
        value, start = self.variable(), self.variable("a")
        self.refuse(f"at > {self.end}")
        self.emit(
            f"{start} = at",
            f"{value}, at = {self.name('READ', kind.read)}(buf, at, {self.end}, {self.name('STYLE', self.style)})",
        )
        self.refuse(f"not {start} <= at <= {self.end}")
        return value


def _format(run: list[_Fixed]) -> str:
    order = next((one.order for one in run if one.order), ">")
    return order + "".join([one.code for one in run])


def _targets(run: list[_Fixed]) -> str:
    return ", ".join([one.variable for one in run]) + ("," if len(run) == 1 else "")


def _is_branched(kind: Group) -> bool:
    """Return whether an object has so many alternatives that compiling them per layout costs more than a call per object, and refers
    to no field around it."""
    choices = [entry.type for entry in kind.fields if isinstance(entry, Field) and isinstance(entry.type, Choice)]
    return any(len(choice.alternatives) >= BRANCHES for choice in choices) and is_closed(kind)


def is_flat(kind: Type, orders: set[str]) -> bool:
    """Return whether `kind` consists of fixed fields only; add its byte orders to `orders`."""
    match kind:
        case Number() | Bits(number=Number()):
            number = kind.number if isinstance(kind, Bits) else kind
            if number.size > 1 and number.code != "16s":
                orders.add(number.order)
            return True
        case Fixed() | FixedText():
            return True
        case Group(fields=fields):
            return all(isinstance(entry, Field) and not entry.secret and is_flat(entry.type, orders) for entry in fields)
        case _:
            return False
