"""The rules applied to each field before it is compared: the protocol's table, overridden by the user's settings."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache, partial
from itertools import product
from typing import Any, Literal, NamedTuple, cast

from ..patterns import encodable, linear
from ..protocols.compare_rules import CompareRules
from .settings import CheckSettings
from .values import Alias, Placeholder, key, shown

What = Literal["drop", "paired", "alias", "host", "port", "mask", "reduce", "type", "pattern"]

_SPEAKING = re.compile(r"(?:^|_)(?:timestamp|checksum|crc|crc32)(?:_|$)|^(?:size|length|len|time|created_at|updated_at)$|_(?:length|len)$")
"""Names of fields that are not compared in a protocol without a table: sizes, times and checksums."""

KINDS: Mapping[type, str] = {bool: "boolean", int: "number", float: "number", str: "text", bytes: "bytes", list: "list", type(None): "null"}

REMEMBERED, OBJECTS = 16_384, 256
LONGEST = 200
"""Fields whose rules are remembered, the objects and members of each, and characters of a path; names in documents of users may be
without end."""


class FieldRule(NamedTuple):
    """How a field is compared; `with_` is its parameter: a word, a function or a pattern."""

    what: What
    with_: Any = None


class PathStep(NamedTuple):
    """From an object to a member of it."""

    labelled: str | None
    """The member whose value this one may name."""
    part: str
    """What a path has more."""
    pattern: str
    """The path of the member without the numbers of lists."""
    rule: FieldRule | None


_Table = dict[tuple[str, str], tuple[FieldRule | None, str]]
"""Rules with the user's word for the field, by name of message ("": any) and path."""


class FieldRules:
    """The rules of one protocol."""

    def __init__(self, compare_rules: CompareRules | None, settings: CheckSettings, protocol: str, used: set[str]) -> None:
        """`used` collects the fields of the user's own rules that a message had."""
        self.compare_rules = own = compare_rules or CompareRules()
        self.known = compare_rules is not None
        self.settings = settings
        self._used = used
        self._remembered = lru_cache(REMEMBERED)(self._look)
        self.steps = lru_cache(OBJECTS)(partial(_Steps, self))
        """Gives the steps from objects at a path, without the numbers of lists, of messages of a name."""
        user, kept, fixed = self._tables = cast("tuple[_Table, _Table, _Table]", ({}, {}, {}))
        for scope, said in settings.scopes(protocol):
            rules = [*((field, FieldRule("drop")) for field in said.ignore), *((field, FieldRule("type")) for field in said.mask.type)]
            for field, rule in (*rules, *((field, FieldRule("pattern", linear(one))) for field, one in said.mask.pattern.items())):
                user[_scoped(scope, field)] = rule, field
            kept |= {_scoped(scope, field): (None, field) for field in said.keep}
        rows: tuple[tuple[What, Iterable[tuple[Any, Iterable[str]]]], ...] = (
            ("drop", [(None, own.dropped)]),
            ("paired", [(None, own.paired)]),
            ("alias", own.aliases.items()),
            ("host", [(None, own.hosts)]),
            ("port", [(None, own.ports)]),
            ("mask", own.masked.items()),
            ("reduce", [(function, [pattern]) for pattern, function in own.reduced.items()]),
        )
        for what, each in rows:
            fixed |= {_place(pattern): (FieldRule(what, with_), "") for with_, patterns in each for pattern in patterns}

    @property
    def asked(self) -> bool:
        """Whether the user's settings name any of these messages."""
        return bool(self._tables[0]) or bool(self.settings.always.mask.text)

    def of(self, name: str, path: str) -> FieldRule | None:
        """Return the rule of the field at `path`, without the numbers of lists, of messages of this name."""
        return self._remembered(name, path) if len(path) <= LONGEST else self._look(name, path)

    def _look(self, name: str, path: str) -> FieldRule | None:
        for table, scope in product(self._tables, (name, "")):
            found: tuple[FieldRule | None, str] | None = table.get((scope, path)) or table.get((scope, f"*.{last(path)}"))
            if found is not None:
                self._used.add(found[1])
                return found[0]
        return FieldRule("drop") if not self.known and _SPEAKING.search(last(path)) else None


class _Steps(dict[str, PathStep]):
    """The steps from an object to its members; `keyed`: it is a list of keys and values."""

    def __init__(self, rules: FieldRules, name: str, pattern: str, keyed: bool) -> None:
        self._rules, self._name, self._pattern, self._keyed = rules, name, pattern, keyed

    def __missing__(self, member: str) -> PathStep:
        labelled = member[:-6] if member.endswith("_label") and not self._keyed else None
        part = f"[{shown(member)}]" if self._keyed else key(member, False)
        path = self._pattern + part if self._pattern else part.removeprefix(".")
        step = PathStep(labelled, part, path, self._rules.of(self._name, path))
        if len(self) < OBJECTS and len(path) <= LONGEST:
            self[member] = step
        return step


def last(path: str) -> str:
    """The last part of a path."""
    return path if path.endswith("]") and "." not in path else path.rpartition(".")[2]


def _scoped(scope: str, field: str) -> tuple[str, str]:
    """Return the place of a field as the user names it: `fields.stream`, or a name alone that stands for it at any depth."""
    return scope, field.removeprefix("fields.") if field.startswith("fields.") else f"*.{field}"


def _place(pattern: str) -> tuple[str, str]:
    """Return the name of the messages that a protocol's pattern speaks of, and the path in it: `*.checksum` for any depth."""
    name, colon, path = pattern.partition(":")
    return (name, path) if colon and '"' not in name else ("", pattern)


def reduced(rule: FieldRule, value: Any) -> Any:
    """Return the form in which a value is compared, for rules that depend only on the value."""
    if isinstance(value, Placeholder | Alias):
        return value
    match rule.what:
        case "mask":
            return Placeholder(rule.with_)
        case "type":
            return Placeholder(KINDS.get(type(value), "object"))
        case "reduce":
            word = rule.with_(value)
            return value if word is None else Placeholder(word)
        case "pattern":
            text = value if isinstance(value, str) else value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
            return Placeholder("masked") if rule.with_.fullmatch(encodable(text)) else value
    return value
