"""Reads values from records while a filter runs."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any

import msgspec

from ..layout.values import seen
from ..model import Message
from ..quota import drop_oldest
from .grammar import BracketEntry
from .names import DELTA, RELATIVE, Free

MAX_CLIENTS = 65_536
"""Conversations whose client is remembered."""

CACHE_SIZE = 4_096

Test = Callable[[Any], bool]


class Earlier:
    """State from earlier records of a run: the client, and the times of the first packet and of the previous message.

    The source of an exchange may be a server, as servers send requests too; the sender of an earlier message shows which side it is.
    """

    def __init__(self) -> None:
        self._known: OrderedDict[int, tuple[str, str]] = OrderedDict()
        self._first_ns: int | None = None
        self._last_ns: OrderedDict[int, int] = OrderedDict()
        """The time of the last message by conversation."""
        self._deltas: dict[int, int] = {}
        """`delta` by the identity of the records of the last `learn`."""

    def begin(self, time_ns: int) -> None:
        """Count relative times from here; without that, they count from the first record."""
        self._first_ns = time_ns

    def learn(self, records: Iterable[Any]) -> None:
        """Learn from all records in order, before values of them are requested."""
        self._deltas.clear()
        for record in records:
            time_ns, conversation = record.time_ns, record.conversation
            if self._first_ns is None:
                self._first_ns = time_ns
            before = self._last_ns.get(conversation)
            if before is not None:
                self._deltas[id(record)] = time_ns - before
            if type(record) is Message:
                self._last_ns[conversation] = time_ns
                drop_oldest(self._last_ns, MAX_CLIENTS)
            self._meet(record)

    def relative(self, record: Any) -> int | None:
        """Return the time since the first packet of the capture, in nanoseconds."""
        return None if self._first_ns is None else max(0, record.time_ns - self._first_ns)

    def delta(self, record: Any) -> int | None:
        """Return the time since the previous message of its conversation, in nanoseconds."""
        return self._deltas.get(id(record))

    def _meet(self, record: Any) -> None:
        sender = getattr(record, "sender", None)
        if sender is None or record.conversation in self._known:
            return
        ends = (record.src, record.dst)
        known = self._known
        known[record.conversation] = ends if sender == "client" else (ends[1], ends[0])
        drop_oldest(known, MAX_CLIENTS)

    def client(self, record: Any) -> str | None:
        return self._end(record, 0)

    def server(self, record: Any) -> str | None:
        return self._end(record, 1)

    def _end(self, record: Any, side: int) -> str | None:
        sender = getattr(record, "sender", None)
        if sender is not None:
            end: str = record.src if (sender == "client") == (side == 0) else record.dst
            return end
        known = self._known.get(record.conversation)
        return None if known is None else known[side]

    def scope(self) -> dict[str, Any]:
        """Return the functions that expressions of keys call."""
        ends: dict[str, Any] = {
            "ports": ports,
            "srcport": srcport,
            "dstport": dstport,
            "addresses": addresses,
            "shown": shown,
            "behind": behind,
        }
        return {"client": self.client, "server": self.server, RELATIVE: self.relative, DELTA: self.delta, **ends}


@lru_cache(CACHE_SIZE)
def split(endpoint: str) -> tuple[str, int]:
    """Return address and port of an endpoint."""
    address, _, port = endpoint.rpartition(":")
    return address.strip("[]"), int(port)


def ports(record: Any) -> list[int]:
    """Return the ports of both ends."""
    return [split(end)[1] for end in (record.src, record.dst) if end is not None]


def srcport(record: Any) -> int:
    """Return the port of the sender."""
    return split(record.src)[1]


def dstport(record: Any) -> int:
    """Return the port of the receiver."""
    return split(record.dst)[1]


def addresses(record: Any) -> list[str]:
    """Return the addresses of both ends."""
    return [split(end)[0] for end in (record.src, record.dst) if end is not None]


BEHIND = "behind("
"""How the source of a key begins whose values are of processes."""

EITHER = ""
"""Stands for both endpoints."""


def behind(record: Any, name: str, endpoint: str | None = EITHER) -> list[Any]:
    """Return the values of this name for the processes of a record: of both sides, or of an endpoint, which may have several PIDs."""
    found: list[Any] = []
    for one in record.processes or ():
        if endpoint in (EITHER, one.endpoint):
            found += [getattr(one, name), *(one.other_pids if name == "pid" else ())]
    return [value for value in found if value is not None]


def texts(record: Any, show_secrets: bool) -> list[str]:
    """Return the bytes of a message, unpacked ones too, as text, without hidden ones."""
    return [data.decode("utf-8", "surrogateescape") for data in seen(record.raw, record.spans, show_secrets).values()]


SHOWN = "shown("
"""How the source of a key begins whose values are shown as text."""


def shown(value: Any) -> list[str]:
    """Return the text of a value of an entry, if there is one: bytes that are not UTF-8 match as such in no text."""
    if value is None:
        return []
    if isinstance(value, bytes):
        return [value.decode("utf-8", "surrogateescape")]
    return [value if isinstance(value, str) else msgspec.json.encode(value).decode()]


def open_values(entry: Any) -> dict[str, Any]:
    """Return the values of an entry below which there may be any path."""
    return {"properties": entry.properties, "body": entry.body}


def fields_of(record: Any) -> dict[str, Any]:
    fields: dict[str, Any] = record.fields if type(record) is Message else open_values(record)
    return fields


def collect(value: Any, steps: tuple[str, ...], at: int, found: list[Any]) -> bool:
    """Add the values at the end of these steps to `found`; return whether a list was on the way.

    Null is skipped. A {"type", "value"} of an undeclared type counts as its value.
    """
    kind = type(value)
    if kind is list or kind is tuple:
        for one in value:
            collect(one, steps, at, found)
        return True
    if at == len(steps):
        if kind is dict and len(value) == 2 and "type" in value and "value" in value:
            value = value["value"]
        if value is not None:
            found.append(value)
        return False
    if not isinstance(value, dict):
        return False
    step = steps[at]
    of = type(step)
    if of is str:
        return step in value and collect(value[step], steps, at + 1, found)
    entry = "value" in value and value.get("key") == str(step)
    if of is BracketEntry and entry:
        return collect(value["value"], steps, at + 1, found)
    if step in value:
        return collect(value[step], steps, at + 1, found)
    if entry:
        return collect(value["value"], steps, at + 1, found)
    if of is Free and len(value) == 2 and "type" in value and "value" in value:
        return collect(value["value"], steps, at, found)
    return False


def some(fields: dict[str, Any], pairs: Iterable[tuple[tuple[str, ...], Test]]) -> bool:
    """Return whether a test holds for any value at the end of its path."""
    for steps, test in pairs:
        value = fields.get(steps[0])
        if value is None and type(steps[0]) is str:
            continue
        found: list[Any] = []
        collect(fields, steps, 0, found)
        for one in found:
            if test(one):
                return True
    return False


def present(value: Any) -> bool:
    """Return whether a value is present: not null, an empty text or an empty list."""
    if value is None:
        return False
    return len(value) > 0 if isinstance(value, str | bytes | list | tuple | dict) else True
