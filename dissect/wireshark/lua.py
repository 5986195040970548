"""Types and fields of tables, written as Lua."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ..layout import (
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
    Labels,
    Number,
    Optional,
    Repeat,
    Rest,
    RestText,
    Sized,
    Text,
    Type,
)
from ..protocols.iggy import bodies
from ..protocols.rabbitmq import chunk, layouts

BY_HAND: Mapping[Type, str] = {
    chunk.CHUNK: "chunk",
    chunk.DRAFT_CHUNK: "chunk",
    chunk.PUBLISHED: "published",
    chunk.PUBLISHED_FILTERED: "published_filtered",
    chunk.DRAFT_PUBLISHED: "published",
    layouts.SASL_USERNAME.type: "sasl_username",
    bodies.CREATED_AT: "created_at",
    bodies.PERMISSIONS: "permissions",
    bodies.I128: "uint128",
    bodies.NEVER: "never",
}
"""The parts that the runtime reads; another one is shown as bytes."""

WIDTH = 118
"""So long a line may become."""


def quoted(text: str) -> str:
    """A string of Lua."""
    plain = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return '"' + "".join(one if one.isprintable() else f"\\{ord(one):03d}" for one in plain) + '"'


def table(parts: Iterable[str], indent: int = 0) -> str:
    """A table of Lua: on one line where it fits, else a line for each part."""
    every = list(parts)
    line = "{ " + ", ".join(every) + " }" if every else "{}"
    if len(line) + indent <= WIDTH and "\n" not in line:
        return line
    step = " " * (indent + 2)
    return "{\n" + "".join(f"{step}{one},\n" for one in every) + " " * indent + "}"


class TypeWriter:
    """Writes types and fields as Lua, and keeps the tables of labels that they name."""

    def __init__(self, computed: Mapping[int, str]) -> None:
        """`computed`: the functions of the runtime that find labels, by the identity of the mapping they stand for."""
        self.computed = computed
        self.labels: dict[str, str] = {}
        """The name of each table of labels, by its content."""
        self.paths: dict[str, set[str]] = {}
        """The tables of labels that a field has, by its path."""
        self.secret: set[str] = set()

    def label(self, path: str, labels: Labels) -> str:
        known = self.computed.get(id(labels))
        if known is None:
            said = table(f"[{key}] = {quoted(text)}" for key, text in sorted(labels.items()))
            own = path.rpartition(".")[2]
            name = own if own not in self.labels.values() else f"{own}_{len(self.labels)}"
            known = "L." + self.labels.setdefault(said, name)
        self.paths.setdefault(path, set()).add(known)
        return known

    def entries(self, entries: Sequence[Entry], path: str, indent: int = 0) -> str:
        return table((self.entry(one, path, indent + 2) for one in entries), indent)

    def entry(self, entry: Entry, path: str, indent: int) -> str:
        match entry:
            case Optional(fields=fields):
                return f"optional({self.entries(fields, path, indent)})"
            case Choice():
                return self.choice(entry, path, indent)
            case Field(name=name, type=kind):
                own = path + name
                parts = [quoted(name), self.choice(kind, path, indent, own) if isinstance(kind, Choice) else self.type(kind, own, indent)]
                if entry.labels is not None:
                    parts.append(f"labels = {self.label(own, entry.labels)}")
                if entry.closed:
                    parts.append("closed = true")
                if entry.secret:
                    self.secret.add(own)
                    parts.append("secret = true")
                return table(parts, indent)
        raise TypeError(f"{entry} is no entry of a layout")

    def choice(self, choice: Choice, path: str, indent: int, own: str = "") -> str:
        """`own`: the path of the field whose value it is."""

        def branch(one: Type | tuple[Entry, ...]) -> str:
            return self.entries(one, path, indent + 2) if isinstance(one, tuple) else self.type(one, own, indent + 2)

        found = table(
            (f"[{quoted(key) if isinstance(key, str) else key}] = {branch(one)}" for key, one in choice.alternatives.items()), indent
        )
        last = "" if choice.otherwise is None else f", {branch(choice.otherwise)}"
        return f"choice({quoted(choice.discriminator)}, {found}{last})"

    def type(self, kind: Type, path: str, indent: int = 0) -> str:
        match kind:
            case Number(name=name):
                return name
            case Text(length=length, null=null) | Blob(length=length, null=null):
                more = "" if null is None else f", {null}"
                return f"{'text' if isinstance(kind, Text) else 'bytes'}({self.length(length)}{more})"
            case Fixed(size=size):
                return f"fixed({size})"
            case FixedText(size=size):
                return f"fixed_text({size})"
            case Rest():
                return "rest"
            case RestText():
                return "rest_text"
            case Bits(number=number, parts=parts):
                rows = (self.bit(path, *part, indent) for part in parts)
                return f"bits({number.name}, {table(rows, indent)})"
            case Array(item=item, count=count):
                return f"array({self.length(count)}, {self.type(item, path, indent)})"
            case Repeat(item=item):
                return f"repeated({self.type(item, path, indent)})"
            case Sized(length=length, content=content):
                return f"sized({self.length(length)}, {self.type(content, path, indent)})"
            case Group(fields=fields):
                return f"group({self.entries(fields, path + '.', indent)})"
            case Custom():
                return BY_HAND.get(kind, "rest")
        raise TypeError(f"{kind} is no type of a field")

    def bit(self, path: str, name: str, shift: int, mask: int, labels: Labels | None, indent: int) -> str:
        said = [quoted(name), str(1 << shift), str(mask + 1)]
        if labels is not None:
            said.append(f"labels = {self.label(f'{path}.{name}', labels)}")
        return table(said, indent)

    def length(self, length: Number | str) -> str:
        return length.name if isinstance(length, Number) else quoted(length)
