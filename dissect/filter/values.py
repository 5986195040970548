"""How values are got out of a record while a filter runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any

from ..layout.values import seen
from ..model import Message
from .grammar import BracketEntry
from .names import DELTA, RELATIVE, Free

CLIENTS_KEPT = 65_536
"""So many conversations are remembered with their client."""

REMEMBERED = 4_096

Test = Callable[[Any], bool]


class Earlier:
    """What earlier records of a run tell of one: who is the client, and how long ago the first packet was, and the message before.

    An exchange says who asked, and servers ask too; but the request came before it, and a message says who sent it.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[str, str]] = {}
        self._first_ns: int | None = None
        self._last_ns: dict[int, int] = {}
        """By conversation the time of its last message."""
        self._deltas: dict[int, int] = {}
        """By the identity of the records that it was told of last."""

    def begin(self, time_ns: int) -> None:
        """Count relative times from here; without that, they count from the first record."""
        self._first_ns = time_ns

    def learn(self, records: Iterable[Any]) -> None:
        """To be told of all records in their order, before it is asked about one of these."""
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
                if len(self._last_ns) > CLIENTS_KEPT:
                    del self._last_ns[next(iter(self._last_ns))]
            self._meet(record)

    def relative(self, record: Any) -> int | None:
        """The time since the first packet of the capture."""
        return None if self._first_ns is None else max(0, record.time_ns - self._first_ns)

    def delta(self, record: Any) -> int | None:
        """The time since the message before it in its conversation."""
        return self._deltas.get(id(record))

    def _meet(self, record: Any) -> None:
        sender = getattr(record, "sender", None)
        if sender is None or record.conversation in self._known:
            return
        ends = (record.src, record.dst)
        known = self._known
        known[record.conversation] = ends if sender == "client" else (ends[1], ends[0])
        if len(known) > CLIENTS_KEPT:
            del known[next(iter(known))]

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
        """What the expressions of keys call."""
        ends = {"ports": ports, "srcport": srcport, "dstport": dstport, "addresses": addresses}
        return {"client": self.client, "server": self.server, RELATIVE: self.relative, DELTA: self.delta, **ends}


@lru_cache(REMEMBERED)
def split(endpoint: str) -> tuple[str, int]:
    """Address and port of an endpoint."""
    address, _, port = endpoint.rpartition(":")
    return address.strip("[]"), int(port)


def ports(record: Any) -> list[int]:
    """Those of both ends."""
    return [split(end)[1] for end in (record.src, record.dst) if end is not None]


def srcport(record: Any) -> int:
    """That of the sender."""
    return split(record.src)[1]


def dstport(record: Any) -> int:
    """That of the receiver."""
    return split(record.dst)[1]


def addresses(record: Any) -> list[str]:
    """Those of both ends."""
    return [split(end)[0] for end in (record.src, record.dst) if end is not None]


def texts(record: Any, show_secrets: bool) -> list[str]:
    """The bytes of a message, unpacked ones too, as text: of what is hidden nothing is to be found, nor of what nobody asked to keep."""
    return [data.decode("utf-8", "surrogateescape") for data in seen(record.raw, record.spans, show_secrets).values()]


def collect(value: Any, steps: tuple[str, ...], at: int, found: list[Any]) -> bool:
    """Add what is at the end of these steps to `found`; whether a list was passed through on the way.

    Null is nothing. What stands as {"type", "value"} where nobody declares what stands there is the value.
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
    """Whether a test holds for any value at the end of its path."""
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
    """Whether there is something: null, an empty text and an empty list are nothing."""
    if value is None:
        return False
    return len(value) > 0 if isinstance(value, str | bytes | list | tuple | dict) else True
