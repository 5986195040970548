"""The user's settings for comparing: `[tool.streamdump.check]` of a pyproject.toml, or `[check]` of a streamdump.toml.

The file is searched from the folder of the capture upwards, then from the current folder upwards. Only the first one with such a table
counts; options on the command line override it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from ..errors import UsageError
from ..patterns import TooLarge, linear
from ..units import TIMES
from .untrusted_files import Unfit, read_toml
from .values import cut

ONLY = ("all", "handshake", "names")

SIZE = 128 << 10
"""Bytes that a file of settings may have."""

QUOTED = 200
"""Characters of a wrong value that an error quotes."""

INSTRUCTIONS = 2_000
"""Of a program that RE2 makes of a pattern, and twice as many of all: where states explode, each may be looked at for each character."""

TEXTS = 20
"""Patterns that are searched in every text."""

_DURATION = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,18})?) *([a-zµ]+)")
_WORD = re.compile(r"[a-z][a-z_-]*")


@dataclass
class Mask:
    """Placeholders for values that differ each time."""

    type: list[str] = field(default_factory=list)
    pattern: dict[str, str] = field(default_factory=dict)
    text: dict[str, str] = field(default_factory=dict)


@dataclass
class ByMessage:
    """What may be set for all messages, those of a protocol, and those of one name."""

    ignore: list[str] = field(default_factory=list)
    keep: list[str] = field(default_factory=list)
    mask: Mask = field(default_factory=Mask)
    max_latency: dict[str, int] = field(default_factory=dict)
    """Nanoseconds, by name of message."""


@dataclass
class CheckSettings:
    """What is compared, and how."""

    only: str = "all"
    unordered: bool = False
    heartbeats: bool = False
    always: ByMessage = field(default_factory=ByMessage)
    protocols: dict[str, dict[str, ByMessage]] = field(default_factory=dict)
    """By protocol, and then by name of message, "" for all of them."""
    source: Path | None = None

    def with_more(
        self, only: str | None = None, unordered: bool | None = None, heartbeats: bool | None = None, ignore: Iterable[str] = ()
    ) -> CheckSettings:
        """Return these settings with single ones replaced."""
        return replace(
            self,
            only=only or self.only,
            unordered=self.unordered if unordered is None else unordered,
            heartbeats=self.heartbeats if heartbeats is None else heartbeats,
            always=replace(self.always, ignore=[*self.always.ignore, *ignore]),
        )

    def scopes(self, protocol: str) -> Iterator[tuple[str, ByMessage]]:
        """What holds for a protocol, with the name of the messages that it holds for."""
        yield "", self.always
        yield from self.protocols.get(protocol, {}).items()

    def texts(self) -> dict[str, Any]:
        """Return the patterns that are replaced in every text, by their replacement."""
        return {word: linear(pattern) for word, pattern in self.always.mask.text.items()}

    def _all(self) -> list[ByMessage]:
        return [self.always, *(own for by_name in self.protocols.values() for own in by_name.values())]

    @property
    def limits_latency(self) -> bool:
        """Whether the latency of any response is limited."""
        return any(own.max_latency for own in self._all())

    def named_fields(self) -> set[str]:
        """Return every field that the settings name."""
        return {field for own in self._all() for field in (*own.ignore, *own.keep, *own.mask.type, *own.mask.pattern)}


def settings_for(capture: Path, kept: dict[Path, CheckSettings] | None = None) -> CheckSettings:
    """The settings of the nearest file above a capture, or above the current folder."""
    kept = {} if kept is None else kept
    folder = capture.parent.resolve()
    if folder not in kept:
        found = _above(folder) or _above(Path.cwd()) or CheckSettings()
        kept[folder] = found
    return kept[folder]


def _above(folder: Path) -> CheckSettings | None:
    for place in (folder, *folder.parents):
        for name in ("streamdump.toml", "pyproject.toml"):
            found = read_settings(place / name) if (place / name).is_file() else None
            if found is not None:
                return found
    return None


def read_settings(path: Path) -> CheckSettings | None:
    """Return the settings of one file; None where it has no table for them."""
    try:
        content = read_toml(path, SIZE)
    except FileNotFoundError as error:
        raise UsageError(f"{path}: no such file") from error
    except Unfit as error:
        raise UsageError(f"{path}: {cut(str(error), QUOTED)}") from error
    table: Any = content
    names = ("tool", "streamdump", "check") if path.name == "pyproject.toml" else ("check",)
    for name in names:
        table = table.get(name) if isinstance(table, dict) else None
    if table is None:
        if path.name != "pyproject.toml" and content:
            raise UsageError(f"{path}: no table [check] in it, but {cut(', '.join(content), QUOTED)}")
        return None
    reader = _SettingsReader(path, ".".join(names))
    return reader.settings(table)


Read = Callable[[str, Any], Any]
"""Reads a value, given the name of its key."""

T = TypeVar("T")


class _SettingsReader:
    """Reads a table; its errors name the place and what was probably meant."""

    def __init__(self, path: Path, name: str) -> None:
        self.path = path
        self.name = name
        self._instructions = 0
        """Of all patterns so far."""
        self.shared: dict[str, Read] = {"ignore": self.fields, "keep": self.fields, "mask": self.mask, "max_latency": self.durations}
        """What may be set for messages of any kind."""

    def wrong(self, key: str, what: str) -> UsageError:
        return UsageError(f"{self.path}: {self.name}{'.' if key else ''}{cut(key, QUOTED)}: {cut(what, 2 * QUOTED)}")

    def unknown(self, key: str, known: Any, what: str = "key") -> UsageError:
        near = get_close_matches(key.rpartition(".")[2], [*known], 1)
        return self.wrong(key, f"unknown {what}; " + (f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"))

    def typed(self, where: str, value: Any, kind: type[T], what: str) -> T:
        """Return a value of this type; raise `UsageError` for one of another."""
        if not isinstance(value, kind):
            raise self.wrong(where, f"must be {what}, is {_kind(value)}")
        return value

    def settings(self, table: Any) -> CheckSettings:
        from ..protocols import PROTOCOLS

        boolean = partial(self.typed, kind=bool, what="true or false")
        own: dict[str, Read] = {"only": self.only, "unordered": boolean, "heartbeats": boolean}
        protocols: dict[str, Read] = {protocol.name: partial(self.protocol, protocol) for protocol in PROTOCOLS}
        found = self.table("", table, {**own, **self.shared, **protocols})
        always = ByMessage(**{key: found.pop(key) for key in self.shared if key in found})
        said = {name: found.pop(name) for name in protocols if name in found}
        return CheckSettings(**found, always=always, protocols=said, source=self.path)

    def table(self, where: str, value: Any, known: Mapping[str, Read]) -> dict[str, Any]:
        """Return the values of a table, each read by the function that `known` has for its key."""
        found = {}
        for key, one in self.pairs(where, value):
            inner = f"{where}.{key}" if where else key
            if key not in known:
                raise self.unknown(inner, known)
            found[key] = known[key](inner, one)
        return found

    def protocol(self, protocol: Any, where: str, table: Any) -> dict[str, ByMessage]:
        """Return the settings for all messages of a protocol (""), and by name of message."""
        found: dict[str, ByMessage] = {"": ByMessage()}
        names = dict.fromkeys(layout.name for layout in protocol.loaded.layouts if getattr(layout, "kind", "part") != "part")
        known = [*names, *self.shared]
        for key, value in self.pairs(where, table):
            inner = f"{where}.{key}"
            if key in self.shared:
                setattr(found[""], key, self.shared[key](inner, value))
            elif not isinstance(value, dict):
                raise self.unknown(inner, known)
            elif names and key not in names and get_close_matches(key, known, 1):
                raise self.unknown(inner, known, "message")
            else:
                own = self.table(inner, value, {**self.shared, "max_latency": self.duration})
                if "max_latency" in own:
                    own["max_latency"] = {key: own["max_latency"]}
                found[key] = ByMessage(**own)
        return found

    def mask(self, where: str, value: Any) -> Mask:
        return Mask(**self.table(where, value, {"type": self.fields, "pattern": self.patterns, "text": self.words}))

    def patterns(self, where: str, value: Any) -> dict[str, str]:
        return {self.field(where, path): self.pattern(where, text) for path, text in self.texts(where, value)}

    def words(self, where: str, value: Any) -> dict[str, str]:
        if where != "mask.text":
            raise self.wrong(where, "belongs into the mask of all messages")
        pairs = self.texts(where, value)
        if len(pairs) > TEXTS:
            raise self.wrong(where, f"more than {TEXTS} patterns")
        for word, _ in pairs:
            if not _WORD.fullmatch(word):
                raise self.wrong(where, f"{word!r} cannot stand for a value; use small letters")
        return {word: self.pattern(where, text) for word, text in pairs}

    def fields(self, where: str, value: Any) -> list[str]:
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            raise self.wrong(where, f"must be a list of texts, is {_kind(value)}")
        return [self.field(where, one) for one in value]

    def field(self, where: str, text: str) -> str:
        """The name of a field: from `fields.` on, or its last part alone."""
        try:
            return field_name(text)
        except UsageError as error:
            raise self.wrong(where, str(error)) from None

    def durations(self, where: str, value: Any) -> dict[str, int]:
        return {name: self.duration(f"{where}.{name}", text) for name, text in self.pairs(where, value)}

    def duration(self, where: str, value: Any) -> int:
        """`"50ms"` as 50,000,000."""
        found = _DURATION.fullmatch(self.typed(where, value, str, "text such as '50ms'"))
        if found is None or found[2] not in TIMES:
            raise self.wrong(where, f"{value!r} is not a time; write a number with {', '.join(TIMES)}, such as 50ms")
        return int(float(found[1]) * TIMES[found[2]])

    def pairs(self, where: str, value: Any) -> list[tuple[str, Any]]:
        return list(self.typed(where, value, dict, "a table").items())

    def texts(self, where: str, value: Any) -> list[tuple[str, str]]:
        pairs = self.pairs(where, value)
        if not all(isinstance(one, str) for _, one in pairs):
            raise self.wrong(where, "must be a table of texts")
        return pairs

    def only(self, where: str, value: Any) -> str:
        if value not in ONLY:
            near = get_close_matches(str(value), ONLY, 1)
            more = f"; did you mean {near[0]}?" if near else f", is {value!r}"
            raise self.wrong(where, f"must be {', '.join(ONLY[:-1])} or {ONLY[-1]}{more}")
        return str(value)

    def pattern(self, where: str, text: str) -> str:
        try:
            self._instructions += linear(text, INSTRUCTIONS).programsize
        except TooLarge as error:
            raise self.wrong(where, f"{text!r} is too large; a pattern may have {INSTRUCTIONS:,} instructions of RE2") from error
        except ValueError as error:
            raise self.wrong(where, f"{text!r} is not a regular expression of RE2: {error}") from error
        if self._instructions > 2 * INSTRUCTIONS:
            raise self.wrong(where, f"all patterns together may have {2 * INSTRUCTIONS:,} instructions of RE2")
        return text


def field_name(text: str) -> str:
    """Return the name of a field for `--ignore` and the settings; raise `UsageError` for other text."""
    if not text.startswith("fields.") and not re.fullmatch(r"[A-Za-z_$][\w$-]*", text):
        raise UsageError(f"{text!r} is not a field; write it from fields. on, such as fields.chunk.timestamp, or its last part alone")
    return text


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    names: dict[type, str] = {dict: "a table", list: "a list", str: f"the text {value!r}"}
    return names.get(type(value), f"the number {value!r}")
