"""Times as `-t` asks for them."""

from __future__ import annotations

from collections.abc import Sequence
from time import localtime, strftime
from typing import Literal

from ..model import Message, Packet, Record
from ..protocols.records import rfc3339

PACKETS_NOTED = 1 << 18
"""The most packets whose predecessor is remembered, besides those read now."""

Times = Literal["r", "ad", "ud", "e", "d", "dd"]


LATE = "^"
"""Stands behind the time of a record that was released later than others which came after it."""


class ReleaseOrder:
    """Finds the records of a run that were released late: their time is before that of a record before them, though their packet is not
    behind it in the capture, where times may go back, too."""

    def __init__(self) -> None:
        self._latest: Record | None = None

    def late(self, records: Sequence[Record]) -> set[int]:
        """Return the identities of the late ones; to be given all records in their order."""
        found, latest = set[int](), self._latest
        latest_ns = 0 if latest is None else latest.time_ns
        for record in records:
            if record.time_ns >= latest_ns:
                latest, latest_ns = record, record.time_ns
            elif not _is_behind(record, latest):
                found.add(id(record))
        self._latest = latest
        return found


def _is_behind(record: Record, other: Record | None) -> bool:
    """Whether the capture has the last packet of a message behind that of another."""
    if not (isinstance(record, Message) and isinstance(other, Message)):
        return False
    return record.file == other.file and record.packets[1] > other.packets[1]


def utc(time_ns: int) -> str:
    """A date and a time of day, for people; a dash where the capture has none."""
    return "-" if not time_ns else f"{rfc3339(time_ns)[:19].replace('T', ' ')} UTC"


class Clock:
    """Writes times in one form: relative to the first packet of the capture, local, UTC, as an epoch, since the packet before, or since the
    time written before; from one second to the next it has them ready."""

    def __init__(self, form: Times = "r", *, signed: bool = False) -> None:
        """`signed`: relative times do not count from the first packet, so earlier ones are negative."""
        self.form = form
        self._signed = signed
        self._before: dict[int, int] = {}
        """By the time of a packet that of the one before it."""
        self._latest_ns: int | None = None
        self.base: int | None = None
        """What relative times count from."""
        self._written_ns: int | None = None
        self._second_ns = 1 << 63
        self._second_text = ""
        """When the second began in which the time written before is, and its text."""

    def watch(self, packets: list[Packet]) -> None:
        """Observe all packets, for times since the previous packet."""
        if len(self._before) > PACKETS_NOTED:
            self._before.clear()
        for packet in packets:
            if self._latest_ns is not None:
                self._before.setdefault(packet.time_ns, self._latest_ns)
            self._latest_ns = packet.time_ns

    def begin(self, time_ns: int) -> None:
        """Count relative times from here, if they do not yet."""
        if self.base is None:
            self.base = time_ns

    def _passed(self, time_ns: int) -> int:
        if self.form == "d":
            return time_ns - self._before.get(time_ns, time_ns)
        before, self._written_ns = self._written_ns, time_ns
        return 0 if before is None else time_ns - before

    def text(self, time_ns: int, time: str) -> str:
        """The time `time_ns`, whose text in a record is `time`; a dash where the capture has none."""
        if not time_ns:
            return "-"
        rest = time_ns - self._second_ns
        if 0 <= rest < 1_000_000_000:
            return f"{self._second_text}.{str(rest // 1000).zfill(6)}"
        if self.form in ("r", "d", "dd"):
            if self.form == "r":
                if self.base is None:
                    self.base = time_ns
                passed = time_ns - self.base
                if passed < 0 and not self._signed:
                    passed = 0
            else:
                passed = self._passed(time_ns)
            second, rest = divmod(abs(passed), 1_000_000_000)
            if self.form == "r" and self.base is not None and time_ns >= self.base:
                self._second_ns, self._second_text = time_ns - rest, str(second)
            return f"{'-' if passed < 0 else ''}{second}.{str(rest // 1000).zfill(6)}"
        if self.form == "ud":
            return f"{time[:10]} {time[11:26]}"
        second, rest = divmod(time_ns, 1_000_000_000)
        if self.form == "e":
            return f"{second}.{rest:09d}"
        self._second_ns = time_ns - rest
        try:
            self._second_text = strftime("%Y-%m-%d %H:%M:%S", localtime(second))
        except (OverflowError, OSError, ValueError):
            self._second_text = time[:19].replace("T", " ")
        return f"{self._second_text}.{str(rest // 1000).zfill(6)}"
