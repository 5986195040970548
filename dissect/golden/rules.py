"""What is done with each field before it is compared: by the protocol's table, and by what the user says beside it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache, partial
from typing import Any, Literal, NamedTuple

from streamdump.golden.settings import ByMessage, CheckSettings
from streamdump.golden.values import Alias, Placeholder, key, shown
from streamdump.patterns import encodable, linear
from streamdump.protocols.compare_rules import CompareRules

What = Literal["drop", "paired", "alias", "host", "port", "mask", "reduce", "type", "pattern"]

_SPEAKING = re.compile(r"(?:^|_)(?:timestamp|checksum|crc|crc32)(?:_|$)|^(?:size|length|len|time|created_at|updated_at)$|_(?:length|len)$")
"""Names of fields that say nothing of behaviour in a protocol without a table: sizes, times and checksums."""

KINDS: Mapping[type, str] = {bool: "boolean", int: "number", float: "number", str: "text", bytes: "bytes", list: "list", type(None): "null"}

REMEMBERED, OBJECTS = 16_384, 256
LONGEST = 200
"""Fields whose rules are remembered, the objects and members of each, and characters of a path; names in documents of users may be
without end."""


class FieldRule(NamedTuple):
    """What is done with a field; `with_` is what that takes: a word, a function, a pattern."""

    what: What
    with_: Any = None


class Step(NamedTuple):
    """From an object to a member of it."""

    labelled: str | None
    """The member whose value this one may name."""
    part: str
    """What a path has more."""
    pattern: str
    """The path of the member without the numbers of lists."""
    rule: FieldRule | None


class FieldRules:
    """The rules of one protocol."""

    def __init__(self, compare_rules: CompareRules | None, settings: CheckSettings, protocol: str, used: set[str]) -> None:
        """`used` collects what of the user's own rules was of use."""
        self.compare_rules = compare_rules or CompareRules()
        self.known = compare_rules is not None
        self.settings = settings
        self._used = used
        self._remembered = lru_cache(REMEMBERED)(self._look)
        self.steps = lru_cache(OBJECTS)(partial(_Steps, self))
        """Gives the steps from objects at a path, without the numbers of lists, of messages of a name."""
        self._own = _Table()
        self._user = _Table()
        self._kept = _Table()
        told = self.compare_rules
        rows: tuple[tuple[What, Iterable[tuple[Any, Iterable[str]]]], ...] = (
            ("drop", [(None, told.dropped)]),
            ("paired", [(None, told.paired)]),
            ("alias", told.aliases.items()),
            ("host", [(None, told.hosts)]),
            ("port", [(None, told.ports)]),
            ("mask", told.masked.items()),
            ("reduce", [(function, [pattern]) for pattern, function in told.reduced.items()]),
        )
        for what, each in rows:
            for with_, patterns in each:
                for pattern in patterns:
                    self._own.add(pattern, FieldRule(what, with_))
        for scope, own in settings.scopes(protocol):
            self._take(scope, own)

    def _take(self, scope: str, own: ByMessage) -> None:
        for field in own.ignore:
            self._user.add(scoped(scope, field), FieldRule("drop"), field)
        for field in own.mask.type:
            self._user.add(scoped(scope, field), FieldRule("type"), field)
        for field, pattern in own.mask.pattern.items():
            self._user.add(scoped(scope, field), FieldRule("pattern", linear(pattern)), field)
        for field in own.keep:
            self._kept.add(scoped(scope, field), None, field)

    @property
    def asked(self) -> bool:
        """Whether the user said anything of these messages."""
        return bool(self._user) or bool(self.settings.always.mask.text)

    def of(self, name: str, path: str) -> FieldRule | None:
        """The rule of the field at `path`, without the numbers of lists, of messages of this name."""
        return self._remembered(name, path) if len(path) <= LONGEST else self._look(name, path)

    def _look(self, name: str, path: str) -> FieldRule | None:
        for table in (self._user, self._kept, self._own):
            found = table.find(name, path)
            if found is not None:
                rule, said = found
                if said:
                    self._used.add(said)
                return rule
        return FieldRule("drop") if not self.known and _SPEAKING.search(last(path)) else None


class _Steps(dict[str, Step]):
    """The steps from an object to its members; `keyed`: it is a list of keys and values."""

    def __init__(self, rules: FieldRules, name: str, pattern: str, keyed: bool) -> None:
        self._rules, self._name, self._pattern, self._keyed = rules, name, pattern, keyed

    def __missing__(self, member: str) -> Step:
        labelled = member[:-6] if member.endswith("_label") and not self._keyed else None
        part = f"[{shown(member)}]" if self._keyed else key(member, False)
        path = self._pattern + part if self._pattern else part.removeprefix(".")
        step = Step(labelled, part, path, self._rules.of(self._name, path))
        if len(self) < OBJECTS and len(path) <= LONGEST:
            self[member] = step
        return step


class _Table:
    """Rules by the fields that they speak of."""

    def __init__(self) -> None:
        self._exact: dict[str, tuple[FieldRule | None, str]] = {}
        self._anywhere: dict[str, tuple[FieldRule | None, str]] = {}

    def __bool__(self) -> bool:
        return bool(self._exact or self._anywhere)

    def add(self, pattern: str, rule: FieldRule | None, said: str = "") -> None:
        before = pattern.partition('"')[0]
        name = before.partition(":")[0] if ":" in before else ""
        path = pattern[len(name) + 1 :] if ":" in before else pattern
        table = self._anywhere if path.startswith("*.") else self._exact
        table[f"{name}:{path.removeprefix('*.')}"] = rule, said

    def find(self, name: str, path: str) -> tuple[FieldRule | None, str] | None:
        for where in (f"{name}:", ":"):
            found = self._exact.get(where + path) or (self._anywhere and self._anywhere.get(where + last(path)))
            if found:
                return found
        return None


def last(path: str) -> str:
    """The last part of a path."""
    return path if path.endswith("]") and "." not in path else path.rpartition(".")[2]


def scoped(scope: str, field: str) -> str:
    """A field as the user names it, as a pattern: `fields.stream`, or a bare name that stands for it at any depth."""
    path = field.removeprefix("fields.") if field.startswith("fields.") else f"*.{field}"
    return f"{scope}:{path}"


def reduced(rule: FieldRule, value: Any) -> Any:
    """What is compared of a value by the rules that need nothing but the value."""
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
