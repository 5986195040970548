"""Converts the right side of a comparison: text and the types of a name become a test of values.

A `Misfit` is the reason why a value cannot be compared with a type; it is an error only if the value fits no type of the name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from operator import ge, gt, le, lt
from typing import Any, NamedTuple

from ..patterns import linear
from ..protocols.field_registry import BOOL, FLOAT, INT, OTHER, WORDS
from ..units import TIMES
from .grammar import SIZES, Value, shortened
from .names import ADDRESS, DURATION, ENDPOINT, TIME, nearest
from .values import CACHE_SIZE, Test, split

DIGITS_LIMIT = 400
WIDE_LIMIT = 64
"""Characters of a number, and of an integer in text form."""

_NUMBER = re.compile(r"([+-]?(?:0x[0-9a-fA-F]+|(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?))([^\W\d]*)")
_TIME = re.compile(r"(\d{4})-(\d\d)-(\d\d)(?:[Tt ](\d\d):(\d\d)(?::(\d\d)(?:\.(\d{1,9})\d*)?)?)?(Z|z|[+-]\d\d:\d\d)?", re.ASCII)
_INTEGER = re.compile(r"[+-]?[0-9]+")

ORDER: dict[str, Callable[[Any, Any], bool]] = {"<": lt, "<=": le, ">": gt, ">=": ge}

Network = IPv4Network | IPv6Network


class Misfit(Exception):
    """Why a value does not fit a type; `about`: the value itself is wrong, not its type."""

    def __init__(self, reason: str, about: bool = False) -> None:
        self.reason = reason
        self.about = about
        super().__init__(reason)


class Want(NamedTuple):
    """Accepted values for one type of field; `labels` are normalised by `same_label`."""

    numbers: tuple[int | float, ...] = ()
    texts: tuple[str, ...] = ()
    booleans: tuple[bool, ...] = ()
    labels: tuple[str, ...] = ()
    ends: tuple[tuple[Network, int | None], ...] = ()


def same_label(text: str) -> str:
    """Return a label normalised for comparison."""
    return text.lower().replace("_", " ")


def want(value: Value, kinds: frozenset[str], labels: tuple[str, ...] = (), choices: tuple[str, ...] = ()) -> Want:
    """Return the accepted values of `value` for a field of these types; raise `Misfit`."""
    numbers: list[int | float] = []
    texts: list[str] = []
    booleans: list[bool] = []
    misfit: Misfit | None = None
    if ENDPOINT in kinds or ADDRESS in kinds:
        return Want(ends=(_end(value.text, ENDPOINT in kinds),))
    if TIME in kinds:
        if INT in kinds and _INTEGER.fullmatch(value.text) and not value.quoted:
            return Want(numbers=(_number(value.text, None),))
        return Want(numbers=(_time(value.text),))
    if DURATION in kinds:
        if value.quoted:
            raise Misfit("is a duration; text in quotes is not a duration; write 20ms")
        return Want(numbers=(_number(value.text, TIMES),))
    if kinds & {INT, FLOAT, OTHER} and not value.quoted:
        try:
            numbers.append(_number(value.text, SIZES))
        except Misfit as error:
            misfit = error
    if kinds & {BOOL, OTHER} and not value.quoted:
        if value.text in ("true", "false"):
            booleans.append(value.text == "true")
        elif BOOL in kinds and value.text in ("0", "1"):
            numbers.append(int(value.text))
        elif misfit is None:
            misfit = Misfit("is true or false")
    if kinds & {WORDS, OTHER}:
        if choices and value.text not in choices:
            near = nearest(value.text, choices)
            raise Misfit(f"is never {shortened(value.text)}; " + (f"did you mean {near}?" if near else f"it is {_or(choices)}"), True)
        texts.append(value.text)
    if numbers or booleans or texts:
        return Want(tuple(numbers), tuple(texts), tuple(booleans))
    if labels:
        wanted = same_label(value.text)
        if any(same_label(one) == wanted for one in labels):
            return Want(labels=(wanted,))
        near = nearest(wanted, map(same_label, labels))
        label = next((one for one in labels if same_label(one) == near), None)
        more = f"did you mean {label}?" if label else f"it has {_or(labels, 6)}"
        raise Misfit(f"has no label {shortened(value.text)}; {more}", True)
    if misfit is not None and not value.quoted:
        raise misfit
    if not kinds & {INT, FLOAT, BOOL}:
        raise Misfit("is an object and has no value of its own")
    what = "a number" if kinds & {INT, FLOAT} else "true or false"
    raise Misfit(f"is {what}; text in quotes is not {what}")


def equal(wants: Iterable[Want], wide: bool = False) -> tuple[Test | None, Test | None]:
    """Return tests for equality with one of these: of values, and of labels."""
    wants = list(wants)
    ends = tuple(end for want in wants for end in want.ends)
    if ends:
        return _at(ends), None
    numbers = frozenset(one for want in wants for one in want.numbers)
    booleans = frozenset(one for want in wants for one in want.booleans)
    texts = frozenset(one for want in wants for one in want.texts) | (frozenset(map(str, numbers)) if wide else frozenset())
    labels = frozenset(one for want in wants for one in want.labels)

    def test(value: Any) -> bool:
        kind = type(value)
        if kind is str:
            return value in texts
        if kind is bool:
            return value in booleans or (not booleans and value in numbers)
        if kind is int or kind is float:
            return value in numbers
        if kind is tuple:
            return any((value[0] or value[1]) <= one <= value[1] for one in numbers)
        return kind is bytes and value.hex() in texts

    return (test if numbers or booleans or texts else None), (_label_in(labels) if labels else None)


def _label_in(labels: frozenset[str]) -> Test:
    def test(value: Any) -> bool:
        return type(value) is str and same_label(value) in labels

    return test


def ordered(operator: str, value: Value, kinds: frozenset[str]) -> Test:
    """Return a test by order, for numbers and times; raise `Misfit`."""
    if kinds & {ENDPOINT, ADDRESS}:
        raise Misfit("is an address, and addresses have no order; compare a prefix such as 10.0.0.0/8 with ==", True)
    if not kinds & {INT, FLOAT, DURATION, TIME, OTHER}:
        raise Misfit(f"is {'text' if WORDS in kinds else 'true or false' if BOOL in kinds else 'an object'}, which has no order", True)
    numbers = want(value, kinds & {INT, FLOAT, DURATION, TIME} or frozenset((INT,))).numbers
    compare, limit = ORDER[operator], numbers[0]

    def test(value: Any) -> bool:
        kind = type(value)
        if kind is int or kind is float:
            return compare(value, limit)
        if kind is tuple:
            return compare(value[1] if operator in (">", ">=") else value[0] or value[1], limit)
        if kind is str and len(value) < WIDE_LIMIT and _INTEGER.fullmatch(value):
            return compare(int(value), limit)
        return False

    return test


def searched(operator: str, value: Value, kinds: frozenset[str], labelled: bool) -> Test:
    """Return a test for a part of a text, or a regular expression; raise `Misfit`."""
    if not labelled and not kinds & {WORDS, OTHER, ENDPOINT, ADDRESS, TIME}:
        what = "a number" if kinds & {INT, FLOAT, DURATION} else "true or false" if BOOL in kinds else "an object"
        raise Misfit(f"is {what}; {operator} works on text only", True)
    if operator == "contains":
        part = value.text
        octets = part.encode("utf-8", "surrogateescape")

        def inside(value: Any) -> bool:
            if type(value) is bytes:
                return octets in value or part in value.hex()
            return type(value) is str and (part in value or octets in _octets(value))

        # An empty part is in every text
        return inside
    search = pattern(value.pattern)

    def found(value: Any) -> bool:
        text = value if type(value) is str else value.hex() if type(value) is bytes else None
        return text is not None and search(text)

    return found


def _octets(text: str) -> bytes:
    """Return the bytes of a text of hex digits; empty for other text."""
    try:
        return b"" if len(text) % 2 or not text.isalnum() else bytes.fromhex(text)
    except ValueError:
        return b""


def pattern(text: str) -> Callable[[str], bool]:
    """Return a search with a regular expression; raise `Misfit`."""
    try:
        search = linear(text).search
    except ValueError as error:
        raise Misfit(f"cannot be searched: not a valid regular expression ({error})", True) from None
    # For text RE2 would convert the match position, which takes as long as the search
    return lambda text: search(text.encode("utf-8", "replace")) is not None


def _number(text: str, units: dict[str, int] | None) -> int | float:
    found = _NUMBER.fullmatch(text) if len(text) <= DIGITS_LIMIT else None
    if found is None:
        if units is TIMES:
            raise Misfit(f"is a duration; {shortened(text)} is not a duration; write 20ms or 1.5s")
        first, dots, last = text.partition("..")
        if dots and _NUMBER.fullmatch(first) and _NUMBER.fullmatch(last):
            raise Misfit(f"is a number; {shortened(text)} is not a number; write >= {first} and <= {last}")
        raise Misfit(f"is a number; {shortened(text)} is not a number")
    digits, unit = found.groups()
    factor = 1
    if unit:
        if units is None or unit not in units:
            raise Misfit(_no_unit(unit, units), True)
        factor = units[unit]
    if "x" in digits:
        return int(digits, 16) * factor
    if _INTEGER.fullmatch(digits):
        return int(digits) * factor
    try:
        exact = Decimal(digits) * factor
    except InvalidOperation:
        raise Misfit(f"is a number; {shortened(text)} is too large") from None
    if abs(exact) < 1 << 64:
        if exact == int(exact):
            return int(exact)
        if units is TIMES and not unit:
            raise Misfit(f"is in nanoseconds without a unit; write {shortened(digits)}s or {shortened(digits)}ms", True)
    return float(exact)


def _no_unit(unit: str, units: dict[str, int] | None) -> str:
    if units is SIZES and unit in TIMES:
        return f"is not a duration in {unit}; write a number in the field's own unit"
    return f"has no unit {unit}; the units are {', '.join(units or ('none',))}"


def _time(text: str) -> int:
    from datetime import UTC, datetime

    found = _TIME.fullmatch(text)
    what = f"is a time; {shortened(text)} is not a time; write 2024-03-01T12:00:00Z, or +01:00 in place of Z"
    if found is None:
        raise Misfit(what)
    year, month, day, hour, minute, second, rest, zone = found.groups()
    if zone is None:
        raise Misfit(f"is a time; {shortened(text)} has no time zone; add Z for UTC, or +01:00", True)
    try:
        moment = datetime(int(year), int(month), int(day), int(hour or 0), int(minute or 0), tzinfo=UTC)
    except ValueError:
        raise Misfit(what) from None
    seconds = int(second or 0)
    if seconds > 60:
        raise Misfit(what)
    seconds += int(moment.timestamp())
    if zone not in "Zz":
        minutes = int(zone[1:3]) * 60 + int(zone[4:])
        seconds -= minutes * 60 if zone[0] == "+" else -minutes * 60
    return seconds * 10**9 + int((rest or "").ljust(9, "0"))


def _end(text: str, with_port: bool) -> tuple[Network, int | None]:
    """Parse an address or prefix, with an optional port."""
    port = None
    address = text
    if with_port and (text.startswith("[") or text.count(":") == 1):
        host, colon, digits = text.rpartition(":")
        if colon and not host.endswith(":") and digits.isascii() and digits.isdigit() and len(digits) <= 5 and int(digits) < 65_536:
            address, port = host, int(digits)
    try:
        network = ip_network(address.strip("[]") if address.startswith("[") else address, strict=False)
    except ValueError:
        forms = "192.0.2.1, 10.0.0.0/8 or 192.0.2.1:5552" if with_port else "192.0.2.1 or 10.0.0.0/8"
        raise Misfit(f"is an address; {shortened(text)} is not an address; write {forms}") from None
    return network, port


def _at(ends: tuple[tuple[Network, int | None], ...]) -> Test:
    """Return a test of endpoints and addresses without port."""

    @lru_cache(CACHE_SIZE)
    def within(text: str) -> bool:
        address, port = split(text) if text.startswith("[") or text.count(":") == 1 else (text, None)
        parsed = ip_address(address)
        return any(parsed.version == network.version and parsed in network and wanted in (None, port) for network, wanted in ends)

    def test(value: Any) -> bool:
        return type(value) is str and within(value)

    return test


def _or(words: tuple[str, ...], most: int = 12) -> str:
    shown = list(words[:most])
    if len(words) > most:
        return f"{', '.join(shown)}, ..."
    return f"{', '.join(shown[:-1])} or {shown[-1]}" if len(shown) > 1 else "".join(shown)
