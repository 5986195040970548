"""A plugin for Wireshark in Lua: the tables, in the words of `types.lua`, behind `runtime.lua`.

What a table says is generated. The runtime knows by hand what none says: how entries, chunks and permissions lie in a frame
(`BY_HAND`), what answers what, and for Apache Iggy which layout a conversation has.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from importlib.resources import files
from typing import Any

from ..layout import Entry, Field, Layout, Number
from ..protocols import PROTOCOLS
from ..protocols.field_registry import BOOL, FLOAT, INT, LEFT_OVER, LIST, OBJECT, WORDS, RegisteredField, declared
from ..protocols.protocol import Protocol
from ..protocols.rabbitmq import chunk
from ..protocols.rabbitmq.compression import COMPRESSIONS
from .iggy import COMPUTED, iggy_tables
from .lua import TypeWriter, quoted, table

LEFT_OUT = ("seastar-rpc", "mewbase")
"""Wireshark has a dissector for the first, and BSON in Lua would be another project."""

RESERVED = ("response_in", "response_to", "response_time", "fault", "refused", "note")
"""What the runtime adds to the fields of a protocol."""

TESTED = "4.0"
"""The versions of Wireshark that the plugin was tested with."""

CODES = {"B": "uint8", "H": "uint16", "I": "uint32", "Q": "uint64", "q": "int64", "3s": "fixed(3)"}
"""Types of the fields of a chunk's header."""

_BYTES = re.compile(r"(array of )?(bytes|\d+ bytes|u?int128)")


def prefix(protocol: Protocol) -> str:
    """What the filter names of a protocol begin with."""
    return protocol.name.replace("-", "_")


def plugin_protocols() -> list[Protocol]:
    return [protocol for protocol in PROTOCOLS if protocol.name not in LEFT_OUT]


def plugin(version: str) -> str:
    """The complete plugin."""
    room = files(__package__)
    head, types, runtime = (room.joinpath(f"{name}.lua").read_text(encoding="utf-8") for name in ("head", "types", "runtime"))
    names = ", ".join(protocol.title for protocol in plugin_protocols())
    for what, value in (("VERSION", version), ("PROTOCOLS", names), ("TESTED", TESTED)):
        head = head.replace(f"@{what}@", value)
    return "\n".join([head, types, runtime, *(line for protocol in plugin_protocols() for line in ProtocolWriter(protocol).lines())])


class ProtocolWriter:
    """Writes all that the tables of a protocol say."""

    def __init__(self, protocol: Protocol) -> None:
        self.protocol = protocol
        self.types = TypeWriter(COMPUTED)
        self.types.secret |= {"body", "trailing"}

    def lines(self) -> Iterator[str]:
        protocol = self.protocol
        said = list(iggy_tables(self.types) if protocol.name == "iggy" else self.tables())
        yield f"-- {protocol.title}\n\ndo\nlocal L = {{}}"
        yield from (f"L.{label} = {text}" for text, label in self.types.labels.items())
        ports, websocket = table(map(str, protocol.ports)), table(map(str, protocol.websocket))
        yield f"local P = protocol({quoted(prefix(protocol))}, {quoted(protocol.title)}, {ports}, {websocket})"
        for path, found in _fields(declared(protocol), ""):
            if path in RESERVED:
                raise ValueError(f"{protocol.name} has a field {path}, which the runtime adds")
            yield self.field(path, found)
        yield from said
        yield "register(P)\nend\n"

    def field(self, path: str, found: RegisteredField) -> str:
        kind = "string" if found is LEFT_OVER or path in self.types.secret else _type(found)
        labels = {one for one in self.types.paths.get(path, ()) if one.startswith("L.") and "int" in kind}
        values = labels.pop() if len(labels) == 1 else "nil"
        return f"P:field({quoted(path)}, {quoted(kind)}, {values}, {quoted('; '.join(found.notes))})"

    def tables(self) -> Iterator[str]:
        """The messages of a protocol whose frames begin with a size and a command."""
        found = [one for one in self.protocol.loaded.layouts if isinstance(one, Layout)]
        language: Any = getattr(self.protocol.loaded.dissector, "language", None)
        depth = len(_match(found[0])[1])
        yield f"P.head = {self.types.entries(found[0].fields[:depth], '')}"
        if language is not None:
            yield f"P.accepted = {table(f'[{code}] = true' for code in sorted(language.accepted))}"
            yield f"P.compressions = {self.types.label('compression', COMPRESSIONS)}"
            yield f"P.tracking_types = {self.types.label('type', chunk.TRACKING_TYPES)}"
            for form in language.forms:
                yield f"P:form({self.parts(form.header.fields, 'chunk.')}, {self.parts(form.sub_batch.fields, '')})"
        for one in found:
            match = table(f"{name} = {value}" for name, value in _match(one)[0].items())
            side = {"request": "client", "response": "server"}.get(one.kind)
            if language is not None:
                asks, answers = (any(one in row for row in rows.values()) for rows in (language.client, language.server))
                side = None if asks and answers else "client" if asks else "server" if answers else side
            said = ", ".join((quoted(one.name), quoted(one.kind), "nil" if side is None else quoted(side), match))
            yield f"P:message({said}, {self.types.entries(one.fields, '')})"

    def parts(self, parts: Sequence[chunk.HeaderField], path: str) -> str:
        """The fixed fields of a chunk."""
        labels = ([] if one.labels is None else [f"labels = {self.types.label(path + one.name, one.labels)}"] for one in parts)
        return table(table([quoted(one.name), CODES[one.code], *more]) for one, more in zip(parts, labels, strict=True))


def _levels(found: RegisteredField | None) -> Iterator[RegisteredField]:
    """The properties of a field, and of its items if it is a list."""
    while found is not None:
        yield found
        found = found.items


def _fields(found: RegisteredField, path: str) -> Iterator[tuple[str, RegisteredField]]:
    """Every field by its path, those of items of lists too."""
    for name, member in found.members.items():
        yield path + name, member
        for level in _levels(member):
            yield from _fields(level, f"{path}{name}.")
    if found.sized and "trailing" not in found.members:
        yield f"{path}trailing", LEFT_OVER


def _type(found: RegisteredField) -> str:
    """The type in Wireshark of a field: one that holds all that the tables say."""
    levels = list(_levels(found))
    kinds = {kind for level in levels for kind in level.kinds} - {LIST}
    low, high = min(level.low for level in levels), max(level.high for level in levels)
    if kinds == {OBJECT}:
        return "none"
    if kinds == {INT}:
        signs, largest = ("int", max(high, -1 - low) * 2) if low < 0 else ("uint", high)
        return signs + next((str(bits) for bits in (8, 16, 32) if largest < 1 << bits), "64")
    if kinds == {WORDS} and all(map(_BYTES.match, found.descriptions)):
        return "bytes"
    return {BOOL: "bool", FLOAT: "double"}.get(next(iter(kinds)), "string") if len(kinds) == 1 else "string"


def _match(layout: Layout) -> tuple[dict[str, int], Sequence[Entry]]:
    """The numbers that identify a frame of this layout, and the fields up to the last of them."""
    found: dict[str, int] = {}
    depth = 0
    for index, entry in enumerate(layout.fields):
        if not isinstance(entry, Field) or not isinstance(entry.type, Number):
            break
        if entry.default == layout.key or (entry.labels is not None and layout.key in entry.labels and layout.key not in found.values()):
            found[entry.name] = int(layout.key or 0)
        elif isinstance(entry.default, int):
            found[entry.name] = entry.default
        else:
            continue
        depth = index + 1
    return found, layout.fields[:depth]
