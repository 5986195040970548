"""Resolves names: keys of the JSON contract, values derived from them, and the declared fields of every protocol.

All of it is read off the records' own structs and the protocols' tables, so a new kind of record or a new protocol is known by itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import cache, cached_property
from types import NoneType
from typing import Any, Literal, NamedTuple, get_args, get_origin

import msgspec

from ..model import PROCESS_KEYS, Entry, Exchange, Gap, Message, Options, Process, Record
from ..protocols import PROTOCOLS
from ..protocols.field_registry import BOOL, FLOAT, INT, LEFT_OVER, OBJECT, OTHER, WORDS, RegisteredField, declared
from ..protocols.protocol import Protocol
from .grammar import BracketEntry, parts_of

RECORDS: tuple[type[Message | Gap | Exchange], ...] = get_args(Record)

ENTRIES: tuple[type[Entry], ...] = (Entry,)
"""The records of a filter of entries."""

OPEN = ("properties", "body")
"""Keys of entries whose values may have any path."""

FIELDS, PROTOCOL, RAW = "fields", "protocol", "raw"

RELATIVE, DELTA = "relative", "delta"
"""The time since the first record, and since the message before in the conversation."""

DURATION, TIME, ENDPOINT, ADDRESS = "duration", "time", "endpoint", "address"
"""Types of keys, in addition to those of declared fields."""

SHORT = {"latency": "latency_ns", "waited": "waited_ns", "quiet": "quiet_ns"}
"""Names for keys of times."""

CLOSED = ("outcome",)
"""Keys whose values are listed by one record and plain text in another."""

FRAME = "frame.number"
"""The packets of a message, from the first to the last."""

AS_IN_TSHARK = {
    "tcp.stream": "conversation",
    "tcp.port": "port",
    "ip.addr": "ip",
    "ip.src": "src",
    "ip.dst": "dst",
    "ipv6.addr": "ip",
    "ipv6.src": "src",
    "ipv6.dst": "dst",
}
"""tshark names that are accepted here too."""

FROM_TSHARK = {
    "frame.time": "time",
    "frame.time_relative": RELATIVE,
    "frame.time_delta": DELTA,
    "frame.time_epoch": "time_ns",
    "frame.len": "size",
    "frame.protocols": "protocol",
    "tcp.len": "size",
    "tcp.flags.fin": "how",
    "tcp.flags.reset": "how",
    "ip.host": "ip",
    "_ws.col.protocol": "protocol",
    "_ws.col.info": "name",
    "scylla": "seastar-rpc",
}
"""tshark names with their equivalents."""

TSHARK_PREFIXES = ("_ws.", "eth.", "ip.", "ipv6.", "tcp.", "udp.")
"""Prefixes of tshark names without an equivalent."""

_MEMBER = re.compile(r"(\w+(?:\.\w+)*)(?:\.|\[)([\w$-]+)\]?")

_OF_TYPE: dict[Any, tuple[str, ...]] = {
    int: (INT,),
    float: (FLOAT,),
    bool: (BOOL,),
    str: (WORDS,),
    dict: (OBJECT,),
    NoneType: (),
    Ellipsis: (),
    Any: (),
}
_SPECIAL = {"src": {ENDPOINT}, "dst": {ENDPOINT}, "time": {TIME}, "time_ns": {TIME, INT}}
"""Types of keys that are more specific than their annotation."""


class Key(NamedTuple):
    """A key, or derived value, of one kind of record: an expression over the record `r`, and the types of its values."""

    source: str
    kinds: frozenset[str]
    several: bool = False
    choices: tuple[str, ...] = ()
    """All the values there are, where these are known."""
    struct: bool = False


class Free(str):
    """A step below an undeclared value: a member, or an entry of a list of keys and values."""

    __slots__ = ()


class Path(NamedTuple):
    """A declared field: the steps to it from `fields`, lists being passed through, the types of its values, and their labels."""

    steps: tuple[str, ...]
    kinds: frozenset[str]
    labels: tuple[str, ...] = ()
    wide: bool = False

    @property
    def label_steps(self) -> tuple[str, ...]:
        return (*self.steps[:-1], f"{self.steps[-1]}_label")


class ResolvedName(NamedTuple):
    """The keys and paths of a name, by kind of record and by protocol."""

    keys: Mapping[type, Key]
    paths: Mapping[str, tuple[Path, ...]]


def tag_of(record: type[msgspec.Struct]) -> str:
    """Return the value of `record` for this kind."""
    return str(record.__struct_config__.tag)


def _kinds(annotation: Any) -> tuple[set[str], bool, tuple[str, ...], type | None]:
    """Return what an annotation declares: types, whether it is a list, all its values, and its struct."""
    origin, several = get_origin(annotation), False
    choices: tuple[str, ...] = ()
    struct = None
    if origin is Literal:
        return {WORDS}, False, get_args(annotation), None
    if origin is None and isinstance(annotation, type) and issubclass(annotation, msgspec.Struct):
        return {OBJECT}, False, (), annotation
    if origin in (None, dict):
        return set(_OF_TYPE[origin or annotation]), False, (), None
    kinds: set[str] = set()
    for one in get_args(annotation):
        some, many, few, inner = _kinds(one)
        kinds |= some
        several, choices, struct = several or many, choices + few, struct or inner
    return kinds, several or origin in (list, tuple, Sequence), choices, struct


_OF_ENDS = {
    "client": Key("client(r)", frozenset((ENDPOINT,))),
    "server": Key("server(r)", frozenset((ENDPOINT,))),
    "port": Key("ports(r)", frozenset((INT,)), True),
    "ip": Key("addresses(r)", frozenset((ADDRESS,)), True),
    "tcp.srcport": Key("srcport(r)", frozenset((INT,))),
    "tcp.dstport": Key("dstport(r)", frozenset((INT,))),
}
"""Return the keys derived from `src` and `dst`."""


def _of_processes() -> dict[str, Key]:
    """Return the keys of processes: of either side, of the client's and of the server's. A client that is not known has none."""
    found: dict[str, Key] = {}
    types = {field.name: field.type for field in msgspec.structs.fields(Process)}
    for prefix, side in (("", ""), ("client.", ", client(r) or '-'"), ("server.", ", server(r) or '-'")):
        for name in PROCESS_KEYS:
            kinds, *_ = _kinds(types[name])
            found[f"{prefix}{name}"] = Key(f"behind(r, '{name}'{side})", frozenset(kinds), True)
    return found


def _keys(record: type[msgspec.Struct], records: Iterable[type[msgspec.Struct]]) -> dict[str, Key]:
    """The keys of one kind of record, of these."""
    found = {"record": Key(repr(tag_of(record)), frozenset((WORDS,)), False, tuple(map(tag_of, records)))}
    for field in msgspec.structs.fields(record):
        # Keys with a default exist for detailed views and are not part of the contract
        if not field.required:
            continue
        kinds, several, choices, struct = _kinds(field.type)
        # The text of a time is not made where a view has no use for it
        source = "r.time_ns" if field.name == "time" else f"r.{field.name}"
        if field.name in _SPECIAL or field.name.endswith("_ns"):
            kinds = _SPECIAL.get(field.name, {DURATION})
        elif field.name == PROTOCOL:
            choices = tuple(protocol.name for protocol in PROTOCOLS)
        found[field.name] = Key(source, frozenset(kinds), several, choices, struct is not None)
        for member in msgspec.structs.fields(struct) if struct is not None else ():
            some, many, few, _ = _kinds(member.type)
            inner = f"(None if {source} is None else {source}.{member.name})"
            found[f"{field.name}.{member.name}"] = Key(inner, frozenset(some), many, few)
    found.update({short: found[name] for short, name in SHORT.items() if name in found})
    if "time_ns" in found:
        found.update({name: Key(f"{name}(r)", frozenset((DURATION,))) for name in (RELATIVE, DELTA)})
    if record is Message:
        found[RAW] = Key("raw(r)", frozenset((WORDS,)), True)
    if "src" in found and "dst" in found:
        found.update(_OF_ENDS)
    if any(field.name == "processes" for field in msgspec.structs.fields(record)):
        found.update(_of_processes())
    if record is Entry:
        found |= {name: Key(f"shown(r.{name})", frozenset((WORDS,)), True) for name in ("id", "key", *OPEN)}
    if record is Message:
        found[FRAME] = Key("r.packets", frozenset((INT,)))
    found.update({theirs: found[ours] for theirs, ours in AS_IN_TSHARK.items() if ours in found})
    return found


class NameTable:
    """Every name there is, for one set of options (which bring labels of their own)."""

    def __init__(self, options: Options | None = None, records: tuple[type[msgspec.Struct], ...] = RECORDS) -> None:
        self.records = records
        self.keys: dict[type[msgspec.Struct], dict[str, Key]] = {record: _keys(record, records) for record in records}
        self._agree()
        self._options = options

    # Tables are read on demand: most filters use keys only

    @cached_property
    def messages(self) -> dict[str, None]:
        """The names of all messages."""
        return {name: None for protocol in PROTOCOLS for name in _messages(protocol)}

    def is_message(self, name: str) -> bool:
        """Return whether a message has this name."""
        return any(name in _messages(protocol) for protocol in PROTOCOLS)

    def answers_nothing(self, name: str) -> bool:
        """Return whether messages with this name are declared, and no response is among them."""
        tables = [table for protocol in PROTOCOLS for table in protocol.loaded.layouts if table.name == name]
        return bool(tables) and not any(table.kind in ("response", "part") or getattr(table, "answers", False) for table in tables)

    def is_protocol(self, text: str) -> bool:
        """Return whether this is the name of a protocol, which may be used alone."""
        return text in self.keys[self.records[0]][PROTOCOL].choices

    def key_with(self, text: str, named: bool = True) -> str | None:
        """The key that may have this value: a kind of record, a message (if `named`), or another one whose values are known."""
        if text in self.keys[self.records[0]]["record"].choices:
            return "record"
        if named and self.is_message(text):
            return "name"
        return next((name for keys in self.keys.values() for name, key in keys.items() if text in key.choices), None)

    @cached_property
    def trees(self) -> dict[str, RegisteredField]:
        """The declared fields of each protocol."""
        if self.records is ENTRIES:
            return {protocol.name: _open_tree() for protocol in PROTOCOLS}
        trees = {protocol.name: declared(protocol) for protocol in PROTOCOLS}
        for protocol in PROTOCOLS:
            tree = trees[protocol.name]
            if protocol.loaded.labelled is not None:
                for name, labels in protocol.loaded.labelled(self._options or Options()).items():
                    tree.member(f"{name}_label").labels.update(dict.fromkeys(labels))
        return trees

    @cached_property
    def unlabelled(self) -> set[str]:
        """Fields that would have other labels with other options."""
        options = self._options or Options()
        if options.verbs is not None:
            return set()
        every = [protocol.loaded.labelled(options) for protocol in PROTOCOLS if protocol.loaded.labelled is not None]
        return {name for fields in every for name in fields}

    @cached_property
    def _ends(self) -> dict[str, dict[str, list[tuple[tuple[str, ...], RegisteredField]]]]:
        """Declared fields by protocol and the last step of their path."""
        every: dict[str, dict[str, list[tuple[tuple[str, ...], RegisteredField]]]] = {}
        for protocol, tree in self.trees.items():
            ends = every[protocol] = {}
            for steps, found in _walk(tree):
                ends.setdefault(steps[-1], []).append((steps, found))
        return every

    def _agree(self) -> None:
        """Combine the listed values of a key over all records, if each of them lists values."""
        for name in dict.fromkeys(name for keys in self.keys.values() for name in keys):
            having = [keys for keys in self.keys.values() if name in keys]
            known = name in CLOSED or all(keys[name].choices for keys in having)
            choices = tuple(dict.fromkeys(one for keys in having for one in keys[name].choices)) if known else ()
            for keys in having:
                keys[name] = keys[name]._replace(choices=choices)

    def resolve(self, parts: tuple[str, ...]) -> ResolvedName | None:
        """Return the meaning of a name; None if unknown."""
        own = ".".join(parts)
        keys = {record: known[own] for record, known in self.keys.items() if own in known and not isinstance(parts[-1], BracketEntry)}
        if keys and own not in PROCESS_KEYS:
            return ResolvedName(keys, {})
        paths: dict[str, tuple[Path, ...]] = {}
        for protocol, tree in self.trees.items():
            full_path = parts[0] == FIELDS and len(parts) > 1
            found = {path.steps: path for path in (_descend(tree, parts[1:], ()) if full_path else self._by_end(protocol, parts))}
            if found:
                paths[protocol] = tuple(found.values())
        return ResolvedName(keys, paths) if keys or paths else None

    def _by_end(self, protocol: str, parts: tuple[str, ...]) -> Iterator[Path]:
        """The fields whose path ends like this."""
        size = next((at for at, part in enumerate(parts) if isinstance(part, BracketEntry)), len(parts))
        head, rest = parts[:size], parts[size:]
        for steps, found in self._ends[protocol].get(head[-1], ()):
            if steps[-size:] == head:
                if rest:
                    yield from _descend(found, rest, steps)
                else:
                    yield _path(steps, found, self._beside(protocol, steps))

    def _beside(self, protocol: str, steps: tuple[str, ...]) -> RegisteredField | None:
        """Return the field with the labels of this one."""
        label = f"{steps[-1]}_label"
        return next((above.members[label] for above in _objects(self.trees[protocol], steps[:-1]) if label in above.members), None)

    def known(self) -> dict[str, None]:
        """Return all names: keys, paths from `fields.` on, and their last parts."""
        names: dict[str, None] = {name: None for keys in self.keys.values() for name in keys}
        for tree in self.trees.values():
            for steps, _ in _walk(tree):
                names.setdefault(steps[-1])
        for tree in self.trees.values():
            for steps, _ in _walk(tree):
                names.setdefault(".".join((FIELDS, *steps)))
        return names

    def values_of(self, before: str) -> list[str]:
        """Return the known values of the name at the end of this start of a filter."""
        found = re.search(r"([^\s()!=<>]+)\s*(?:==|!=|in\s*\{[^}]*)\s*$", before)
        parts = () if found is None else parts_of(found[1])
        meaning = self.resolve(parts) if parts else None
        if found is None or meaning is None:
            return []
        if found[1] == "name":
            return [f'"{name}"' if " " in name else name for name in self.messages]
        values = dict.fromkeys(value for key in meaning.keys.values() for value in key.choices)
        values.update(dict.fromkeys(label.replace(" ", "_") for paths in meaning.paths.values() for path in paths for label in path.labels))
        return list(values)

    def advice(self, near: str | None) -> str:
        """Return advice for an unknown name, with the nearest name in `near`."""
        return f"did you mean {near}?" if near else "streamdump protocols --fields lists them"

    def nearest(self, text: str) -> str | None:
        """Return the name that was probably meant."""
        low = text.lower()
        return FROM_TSHARK.get(low) or (None if low.startswith(TSHARK_PREFIXES) else self._entry(text) or nearest(text, self.known()))

    def _entry(self, text: str) -> str | None:
        """Return the bracket form of an entry that was written as a member, or without quotes."""
        found = _MEMBER.fullmatch(text)
        meaning = None if found is None else self.resolve((*found[1].split("."), BracketEntry(found[2])))
        return None if found is None or meaning is None else f'{found[1]}["{found[2]}"]'

    def meant(self, text: str) -> str | None:
        """Return the term that was probably meant by an unknown name."""
        key = self.key_with(text)
        if key is not None:
            return f"{key} == {text}"
        low = text.lower()
        message = next((name for name in self.messages if name.lower() == low), None)
        return f"name == {message}" if message else _protocol_like(low) or self.nearest(text)

    def listed(self, protocol: str | None = None) -> list[tuple[str, str, str]]:
        """Return (name, type, owners) of every name: keys first, then the fields of all protocols, or of one."""
        rows: dict[str, tuple[str, list[str]]] = {}
        for record, keys in self.keys.items():
            for name, key in keys.items():
                rows.setdefault(name, (_words(key.kinds, key.several, key.choices), []))[1].append(tag_of(record))
        listed = [(name, kind, ", ".join(who)) for name, (kind, who) in rows.items()] if protocol is None else []
        fields: dict[tuple[str, str], list[str]] = {}
        for name, tree in self.trees.items():
            if protocol in (None, name):
                for steps, found in _walk(tree):
                    path = _path(steps, found, self._beside(name, steps))
                    several = any(one is not found for one in _through(found))
                    kind = _words(path.kinds, several, path.labels)
                    fields.setdefault((".".join((FIELDS, *steps)), kind), []).append(name)
        return listed + [(name, kind, ", ".join(who)) for (name, kind), who in fields.items()]


def _messages(protocol: Protocol) -> Iterator[str]:
    for layout in protocol.loaded.layouts:
        if getattr(layout, "kind", "part") != "part" and " " not in layout.name:
            yield layout.name
    yield from protocol.loaded.names


def _protocol_like(text: str) -> str | None:
    """Return the first protocol whose name starts with these words."""
    prefix = text.translate(str.maketrans("_.", "--"))
    return next((one.name for one in PROTOCOLS if f"{one.name}-".startswith(f"{prefix}-")), None)


def nearest(text: str, known: Iterable[str]) -> str | None:
    """Return the known name most similar to a text, ignoring case."""
    low: dict[str, str] = {}
    for one in known:
        low.setdefault(one.lower(), one)
    found = get_close_matches(text.lower()[:200], low, 1, 0.6)
    return low[found[0]] if found else None


@cache
def names_of(entries: bool = False) -> NameTable:
    """Return the names of records for default options, or those of `entries`, cached."""
    return NameTable(records=ENTRIES if entries else RECORDS)


def table_of(options: Options | None, entries: bool = False) -> NameTable:
    """Return the names of records, or of `entries`, to which options give no labels."""
    return names_of(entries) if entries or options is None or options.verbs is None else NameTable(options)


def _open_tree() -> RegisteredField:
    """Return what stands for the fields of an entry."""
    tree = RegisteredField()
    for name in OPEN:
        tree.member(name).kinds.add(OTHER)
    return tree


def _words(kinds: Iterable[str], several: bool, values: tuple[str, ...]) -> str:
    named = {INT: "number", FLOAT: "number", WORDS: "text", BOOL: "true or false", OTHER: "anything", OBJECT: "object"}
    words = sorted({named.get(kind, kind) for kind in kinds})
    text = " or ".join(words) or "nothing"
    text = f"list of {text}" if several else text
    return f"{text}: {', '.join(values)}" if values else text


def _through(found: RegisteredField) -> Iterator[RegisteredField]:
    """Yield a field and the items of its lists."""
    yield found
    if found.items is not None:
        yield from _through(found.items)


def _walk(tree: RegisteredField, before: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], RegisteredField]]:
    """Yield every declared field below, with the steps to it."""
    for found in _through(tree):
        for name, member in found.members.items():
            yield (*before, name), member
            yield from _walk(member, (*before, name))
        if found.sized and "trailing" not in found.members:
            yield (*before, "trailing"), LEFT_OVER


def _objects(found: RegisteredField, steps: tuple[str, ...]) -> Iterator[RegisteredField]:
    for one in _through(found):
        if not steps:
            yield one
        elif steps[0] in one.members:
            yield from _objects(one.members[steps[0]], steps[1:])


def _path(steps: tuple[str, ...], found: RegisteredField, beside: RegisteredField | None = None) -> Path:
    every = list(_through(found))
    kinds = {kind for one in every for kind in one.kinds if kind != "list"}
    labels = dict.fromkeys(label for one in _through(beside) for label in one.labels) if beside is not None else {}
    return Path(steps, frozenset(kinds), tuple(labels), any(one.wide for one in every))


def _descend(found: RegisteredField, parts: tuple[str, ...], before: tuple[str, ...]) -> Iterator[Path]:
    """Yield the fields at the end of this path; below an undeclared value any path is valid."""
    part, rest = parts[0], parts[1:]
    for one in _through(found):
        below, beside = one.members.get(part), one.members.get(f"{part}_label")
        if OTHER in one.kinds:
            yield Path((*before, *map(Free, parts)), frozenset((OTHER,)))
            continue
        if isinstance(part, BracketEntry):
            below, beside = one.members.get("value") if "key" in one.members else None, None
        elif below is None and part == "trailing" and one.sized and not rest:
            below = LEFT_OVER
        if below is not None:
            yield from _descend(below, rest, (*before, part)) if rest else (_path((*before, part), below, beside),)
