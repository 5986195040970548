"""What a user sets for comparing: `[tool.streamdump.check]` of a pyproject.toml, or `[check]` of a streamdump.toml.

The file is searched from the folder of the capture upwards, then from the current one: the first that has such a table holds, and
alone. What a command line says comes on top.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from dataclasses import fields as members
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from streamdump.errors import UsageError
from streamdump.golden.files import Unfit, read_text
from streamdump.golden.values import cut
from streamdump.patterns import linear

ONLY = ("all", "handshake", "names")

UNITS: Mapping[str, int] = {"ns": 1, "us": 1_000, "ms": 1_000_000, "s": 1_000_000_000, "min": 60_000_000_000}
"""Nanoseconds of what may stand behind a number."""

SIZE = 128 << 10
"""Bytes that a file of settings may have."""

ECHOED = 200
"""Characters that are told of what is wrong in it."""

TEXTS = 20
"""Patterns that are searched in every text."""

_PARTS = re.compile(r"""(?:["'\w-]++[ \t]*+\.[ \t]*+){50}""")
"""A name that takes tomllib a time which grows with the square of it."""

_DURATION = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,18})?) *([a-z]+)")
_WORD = re.compile(r"[a-z][a-z_-]*")


@dataclass
class Mask:
    """What stands for values that differ each time."""

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

    def scopes(self, protocol: str) -> Iterator[tuple[str, ByMessage]]:
        """What holds for a protocol, with the name of the messages that it holds for."""
        yield "", self.always
        yield from self.protocols.get(protocol, {}).items()

    def texts(self) -> dict[str, Any]:
        """The patterns that are replaced in every text, by the word that comes instead."""
        return {word: linear(pattern) for word, pattern in self.always.mask.text.items()}

    def said(self) -> set[str]:
        """Every field that something was said of."""
        found: set[str] = set()
        for own in (self.always, *(one for by_name in self.protocols.values() for one in by_name.values())):
            found |= {*own.ignore, *own.keep, *own.mask.type, *own.mask.pattern}
        return found


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
    """The settings of one file; None where it says nothing of comparing."""
    try:
        text = read_text(path, SIZE)
        if _PARTS.search(text):
            raise UsageError(f"{path}: a name of too many parts")
        content = tomllib.loads(text)
    except FileNotFoundError as error:
        raise UsageError(f"{path}: no such file") from error
    except RecursionError as error:
        raise UsageError(f"{path}: too many tables or lists in each other") from error
    except (Unfit, ValueError) as error:
        raise UsageError(f"{path}: {cut(str(error), ECHOED)}") from error
    table: Any = content
    names = ("tool", "streamdump", "check") if path.name == "pyproject.toml" else ("check",)
    for name in names:
        table = table.get(name) if isinstance(table, dict) else None
    if table is None:
        if path.name != "pyproject.toml" and content:
            raise UsageError(f"{path}: no table [check] in it, but {cut(', '.join(content), ECHOED)}")
        return None
    reader = _Reader(path, ".".join(names))
    return reader.settings(table)


class _Reader:
    """Reads a table and says what in it is wrong, where, and what was probably meant."""

    def __init__(self, path: Path, table: str) -> None:
        self.path = path
        self.table = table

    def wrong(self, key: str, what: str) -> UsageError:
        return UsageError(f"{self.path}: {self.table}{'.' if key else ''}{cut(key, ECHOED)}: {cut(what, 2 * ECHOED)}")

    def unknown(self, key: str, known: Any, what: str = "key") -> UsageError:
        near = get_close_matches(key.rpartition(".")[2], [*known], 1)
        return self.wrong(key, f"unknown {what}; " + (f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"))

    def settings(self, table: Any) -> CheckSettings:
        from streamdump.protocols import PROTOCOLS

        self._table("", table)
        found = CheckSettings(source=self.path)
        own = {"only", "unordered", "heartbeats"}
        shared = {one.name for one in members(ByMessage)}
        protocols = {protocol.name: protocol for protocol in PROTOCOLS}
        for key, value in table.items():
            if key == "only":
                found.only = self._one_of(key, value, ONLY)
            elif key in own:
                setattr(found, key, self._boolean(key, value))
            elif key in shared:
                self._shared(key, key, value, found.always)
            elif key in protocols:
                found.protocols[key] = self._protocol(key, value, protocols[key])
            else:
                raise self.unknown(key, [*own, *shared, *protocols])
        return found

    def _protocol(self, name: str, table: Any, protocol: Any) -> dict[str, ByMessage]:
        self._table(name, table)
        shared = {one.name for one in members(ByMessage)}
        found: dict[str, ByMessage] = {"": ByMessage()}
        names = {layout.name for layout in protocol.layouts if getattr(layout, "kind", "part") != "part"}
        for key, value in table.items():
            where = f"{name}.{key}"
            if key in shared:
                self._shared(where, key, value, found[""])
            elif isinstance(value, dict):
                near = get_close_matches(key, [*names, *shared], 1)
                if names and key not in names and near:
                    raise self.unknown(where, [*names, *shared], "message")
                own = found[key] = ByMessage()
                for inner, one in value.items():
                    if inner == "max_latency":
                        own.max_latency[key] = self.duration(f"{where}.{inner}", one)
                    elif inner in shared:
                        self._shared(f"{where}.{inner}", inner, one, own)
                    else:
                        raise self.unknown(f"{where}.{inner}", shared)
            else:
                raise self.unknown(where, [*names, *shared])
        return found

    def _shared(self, where: str, key: str, value: Any, into: ByMessage) -> None:
        if key in ("ignore", "keep"):
            setattr(into, key, [self.field(where, one) for one in self._texts(where, value)])
        elif key == "max_latency":
            self._table(where, value)
            into.max_latency = {name: self.duration(f"{where}.{name}", text) for name, text in value.items()}
        else:
            self._table(where, value)
            into.mask = mask = Mask()
            for name, one in value.items():
                inner = f"{where}.{name}"
                if name == "type":
                    mask.type = [self.field(inner, text) for text in self._texts(inner, one)]
                elif name == "pattern":
                    mask.pattern = {self.field(inner, path): self._pattern(inner, text) for path, text in self._pairs(inner, one)}
                elif name == "text":
                    if where != "mask":
                        raise self.wrong(inner, "belongs into the mask of all messages")
                    if len(one) > TEXTS:
                        raise self.wrong(inner, f"more than {TEXTS} patterns")
                    mask.text = {self._word(inner, word): self._pattern(inner, text) for word, text in self._pairs(inner, one)}
                else:
                    raise self.unknown(inner, ("type", "pattern", "text"))

    def field(self, where: str, text: str) -> str:
        """The name of a field: from `fields.` on, or its last part alone."""
        try:
            return field_name(text)
        except UsageError as error:
            raise self.wrong(where, str(error)) from None

    def duration(self, where: str, value: Any) -> int:
        """`"50ms"` as 50,000,000."""
        if not isinstance(value, str):
            raise self.wrong(where, f"must be text such as {duration_text(50_000_000)!r}, is {_kind(value)}")
        found = _DURATION.fullmatch(value)
        if found is None or found[2] not in UNITS:
            raise self.wrong(where, f"{value!r} is no time; write a number with {', '.join(UNITS)}, such as 50ms")
        return int(float(found[1]) * UNITS[found[2]])

    def _table(self, where: str, value: Any) -> None:
        if not isinstance(value, dict):
            raise self.wrong(where, f"must be a table, is {_kind(value)}")

    def _boolean(self, where: str, value: Any) -> bool:
        if not isinstance(value, bool):
            raise self.wrong(where, f"must be true or false, is {_kind(value)}")
        return value

    def _one_of(self, where: str, value: Any, choices: tuple[str, ...]) -> str:
        if value not in choices:
            near = get_close_matches(str(value), choices, 1)
            raise self.wrong(
                where, f"must be {', '.join(choices[:-1])} or {choices[-1]}{f'; did you mean {near[0]}?' if near else f', is {value!r}'}"
            )
        return str(value)

    def _texts(self, where: str, value: Any) -> list[str]:
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            raise self.wrong(where, f"must be a list of texts, is {_kind(value)}")
        return value

    def _pairs(self, where: str, value: Any) -> list[tuple[str, str]]:
        self._table(where, value)
        if not all(isinstance(one, str) for one in value.values()):
            raise self.wrong(where, "must be a table of texts")
        return list(value.items())

    def _pattern(self, where: str, text: str) -> str:
        try:
            linear(text)
        except ValueError as error:
            raise self.wrong(where, f"{text!r} is no regular expression of RE2: {error}") from error
        return text

    def _word(self, where: str, text: str) -> str:
        if not _WORD.fullmatch(text):
            raise self.wrong(where, f"{text!r} cannot stand for a value; use small letters")
        return text


def field_name(text: str) -> str:
    """What `--ignore` and the settings take for a field."""
    if not text.startswith("fields.") and not re.fullmatch(r"[A-Za-z_$][\w$-]*", text):
        raise UsageError(f"{text!r} is no field; write it from fields. on, such as fields.chunk.timestamp, or its last part alone")
    return text


def duration_text(time_ns: int) -> str:
    """A time in the largest unit that leaves no more than three digits before the point."""
    for unit in ("min", "s", "ms", "us"):
        if time_ns >= UNITS[unit]:
            return f"{time_ns / UNITS[unit]:.4g}{unit}"
    return f"{time_ns}ns"


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "a table"
    if isinstance(value, list):
        return "a list"
    return f"the text {value!r}" if isinstance(value, str) else f"the number {value!r}"
