"""Values of fields as a golden file has them: text for people that reads back as the same values."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable
from hashlib import sha256
from json import JSONDecoder, dumps
from json.encoder import encode_basestring as _text
from math import isfinite
from typing import Any, NamedTuple

LONG = 120
"""Bytes, or characters of a text, that a golden file keeps; of longer values it keeps size and digest."""

_DIGEST = 16
"""Hexadecimal digits of a digest: enough to distinguish values, too few to look like a secret."""

_scan = JSONDecoder().scan_once  # type: ignore[attr-defined]
_ALIAS = re.compile(r"([a-z]+) ([0-9]{1,18})")
_PLAIN = re.compile(r"[A-Za-z_$][\w$-]*")
_PATH = re.compile(r'(?:\.?[^\s=.\["]+|\.|\["(?:[^"\\]|\\.)*+"\]|\[[^"\]][^\]]*\]){1,1000}+')
"""A path of at most 1,000 parts."""

DEEP = 100
"""Lists and objects in each other: no message has as many."""

SIMPLE = frozenset((int, bool, float, str, bytes, type(None)))
"""Types of values that hold no others."""


class Alias(NamedTuple):
    """An id, address or port that was renamed: the first of its kind is number 1."""

    kind: str
    number: int


class Placeholder(NamedTuple):
    """A placeholder for a value that is not compared."""

    text: str


class ValueSet(NamedTuple):
    """The values that a field has in the messages of a flow."""

    values: tuple[Any, ...]


def digest(data: bytes, what: str = "bytes") -> Placeholder:
    """Return the placeholder of long data."""
    return Placeholder(f"{len(data)} {what} sha256 {sha256(data).hexdigest()[:_DIGEST]}")


def shortened(value: Any) -> Any:
    """A value as it is kept: long ones by their digest."""
    if not isinstance(value, bytes | str | list) or len(value) <= LONG:
        return value
    if isinstance(value, bytes):
        return digest(value)
    text, what = (value, "text") if isinstance(value, str) else (shown(value), "list")
    return digest(text.encode("utf-8", "surrogatepass"), f"bytes of {what}")


def same(one: Any, other: Any) -> bool:
    """Whether two values are equal, the kind of number included."""
    return identity(one) == identity(other)


def identity(value: Any) -> Hashable:
    """Return a key that is equal for equal values only."""
    match value:
        case list():
            return list, tuple(map(identity, value))
        case ValueSet():
            return ValueSet, len(value.values), frozenset(map(identity, value.values))
        case dict():
            return dict, frozenset((name, identity(one)) for name, one in value.items())
    return type(value), value


def mapped(value: Any, function: Callable[[Any], Any]) -> Any:
    """Return a value with `function` applied to each element of its lists and sets, or to itself."""
    if type(value) is list:
        return [mapped(one, function) for one in value]
    if type(value) is ValueSet:
        return ValueSet(tuple(mapped(one, function) for one in value.values))
    return function(value)


# As text


def shown(value: Any) -> str:
    """A value as a golden file has it, in one line."""
    return _SHOWN[type(value)](value)


def quoted(text: str) -> str:
    """Text in double quotes, in which nothing is left that a terminal or an editor would act on."""
    return text_of(_text(text))


def _bytes(value: bytes) -> str:
    text = value.decode("ascii", "replace")
    return f"b{_text(text)}" if text.isascii() and text.isprintable() else f'x"{value.hex()}"'


_SHOWN: dict[type, Callable[[Any], str]] = {
    str: quoted,
    int: str,
    bytes: _bytes,
    type(None): lambda _: "null",
    Alias: lambda value: f"<{value.kind} {value.number}>",
    Placeholder: lambda value: f"<{value.text}>",
    list: lambda value: f"[{', '.join(map(shown, value))}]",
    dict: lambda value: f"{{{', '.join(f'{dumps(name)}: {shown(one)}' for name, one in value.items())}}}",
    **dict.fromkeys((bool, float), lambda value: dumps(value, allow_nan=False)),
}


def text_of(text: str) -> str:
    """Return `text` with every unprintable character escaped as in JSON."""
    return text if text.isprintable() else "".join(one if one.isprintable() else dumps(one)[1:-1] for one in text)


def cut(text: str, most: int) -> str:
    """Return `text`, without its middle if it is longer than `most`."""
    return text if len(text) <= most else f"{text[: most // 2]} ... {text[-most // 2 :]}"


def key(name: str, first: bool = True) -> str:
    """A name as part of a path."""
    if (name.isascii() and name.isidentifier()) or _PLAIN.fullmatch(name):
        return name if first else f".{name}"
    return f"[{dumps(name)}]"


# From text


class Unreadable(ValueError):
    """Text that is not a value; `at` is where it stops being one."""

    def __init__(self, at: int, what: str) -> None:
        self.at = at
        super().__init__(what)


def read(text: str, at: int, depth: int = 0) -> tuple[Any, int]:
    """Return the value that begins at `at`, and the position after it."""
    if depth > DEEP:
        raise Unreadable(at, "a value in too many others")
    first = text[at : at + 1]
    if first == '"' or first.isdigit():
        return _json(text, at)
    match first:
        case "<":
            stop = text.find(">", at)
            if stop < 0:
                raise Unreadable(at, "a < without its >")
            inside = text[at + 1 : stop]
            found = _ALIAS.fullmatch(inside)
            return (Placeholder(inside) if found is None else Alias(found[1], int(found[2]))), stop + 1
        case "[":
            items, stop = _items(text, at + 1, depth, "]")
            return [one for _, one in items], stop
        case "{":
            items, stop = _items(text, at + 1, depth, "}")
            return dict(items), stop
        case "b" | "x" if text[at + 1 : at + 2] == '"':
            inner, stop = _json(text, at + 1)
            try:
                return (inner.encode("ascii") if first == "b" else bytes.fromhex(inner)), stop
            except ValueError as wrong:
                raise Unreadable(at, "no bytes") from wrong
    return _json(text, at)


def _items(text: str, at: int, depth: int, end: str) -> tuple[list[tuple[str, Any]], int]:
    """Return the items of a list, or of an object with their names, up to its `end`, and the position after it."""
    items: list[tuple[str, Any]] = []
    while text[at : at + 1] != end:
        name = ""
        if end == "}":
            name, at = _json(text, at)
            if not isinstance(name, str) or text[at : at + 2] != ": ":
                raise Unreadable(at, "no name of an object")
            at += 2
        value, at = read(text, at, depth + 1)
        items.append((name, value))
        if text[at : at + 2] == ", ":
            at += 2
        elif text[at : at + 1] != end:
            raise Unreadable(at, f"neither a comma nor {end}")
    return items, at + 1


def _json(text: str, at: int) -> tuple[Any, int]:
    try:
        value, stop = _scan(text, at)
    except (StopIteration, ValueError, RecursionError) as wrong:
        raise Unreadable(at, "no value") from wrong
    if type(value) is float and not isfinite(value):
        raise Unreadable(at, "no number that JSON has")
    return value, stop


def read_path(text: str, at: int) -> int:
    """Where the path that begins at `at` ends."""
    found = _PATH.match(text, at)
    if found is None:
        raise Unreadable(at, "no name of a field")
    if text[found.end() : found.end() + 1] in ("[", "."):
        raise Unreadable(found.end(), "a [ without its ]" if text[found.end()] == "[" else "a path of too many parts")
    return found.end()
