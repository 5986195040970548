"""Times as `-t` asks for them."""

from __future__ import annotations

from time import localtime, strftime
from typing import Literal

from streamdump.model import Message, Packet, Record
from streamdump.protocols.records import rfc3339

PACKETS_NOTED = 1 << 18
"""Packets of which that before is known, beside those that are read."""

Times = Literal["r", "ad", "ud", "e", "d", "dd"]


LATE = "^"
"""Stands behind the time of a record that was released later than others which came after it."""


class ReleaseOrder:
    """Finds the records of a run that were released late: their time is before that of a record before them, though their packet is not
    behind it in the capture, where times may go back, too."""

    def __init__(self) -> None:
        self._latest_ns = 0
        self._packets: dict[int, int] = {}
        """By file the last packet that brought a message."""

    def is_late(self, record: Record) -> bool:
        """Return whether this record is late; to be asked of all records in their order."""
        in_order = False
        if type(record) is Message:
            number = record.packets[1]
            in_order = number >= self._packets.get(record.file, 0)
            if in_order:
                self._packets[record.file] = number
        if record.time_ns >= self._latest_ns:
            self._latest_ns = record.time_ns
            return False
        return not in_order


def utc(time_ns: int) -> str:
    """A date and a time of day, for people."""
    return f"{rfc3339(time_ns)[:19].replace('T', ' ')} UTC"


class Clock:
    """Writes times in one form: relative to the first packet of the capture, local, UTC, as an epoch, since the packet before, or since the
    time written before; from one second to the next it has them ready."""

    def __init__(self, form: Times = "r", *, signed: bool = False) -> None:
        """`signed`: relative times count from something else than the first packet, so what is earlier is negative."""
        self.form = form
        self._signed = signed
        self._before: dict[int, int] = {}
        """By the time of a packet that of the one before it."""
        self._latest_ns: int | None = None
        self.base: int | None = None
        """What relative times count from."""
        self._written_ns: int | None = None
        self._second = -1
        self._second_text = ""

    def watch(self, packets: list[Packet]) -> None:
        """Be shown all packets, which those take to count from that are said since the packet before."""
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
        if self.form == "dd":
            before, self._written_ns = self._written_ns, time_ns
            return 0 if before is None else time_ns - before
        self.begin(time_ns)
        passed = time_ns - (self.base or 0)
        return passed if self._signed else max(0, passed)

    def text(self, time_ns: int, time: str) -> str:
        """The time `time_ns`, whose text in a record is `time`."""
        if self.form in ("r", "d", "dd"):
            passed = self._passed(time_ns)
            second, rest = divmod(abs(passed), 1_000_000_000)
            return f"{'-' if passed < 0 else ''}{second}.{rest // 1000:06d}"
        if self.form == "ud":
            return f"{time[:10]} {time[11:26]}"
        second, rest = divmod(time_ns, 1_000_000_000)
        if self.form == "e":
            return f"{second}.{rest:09d}"
        if second != self._second:
            self._second = second
            try:
                self._second_text = strftime("%Y-%m-%d %H:%M:%S", localtime(second))
            except (OverflowError, OSError, ValueError):
                self._second_text = time[:19].replace("T", " ")
        return f"{self._second_text}.{rest // 1000:06d}"
