"""Times as `-t` asks for them."""

from __future__ import annotations

from time import localtime, strftime
from typing import Literal

from streamdump.protocols.records import rfc3339

Times = Literal["r", "ad", "ud", "e"]


def utc(time_ns: int) -> str:
    """A date and a time of day, for people."""
    return f"{rfc3339(time_ns)[:19].replace('T', ' ')} UTC"


class Clock:
    """Says times in one form: relative to the first one, local, UTC, or as an epoch; from one second to the next it has them ready."""

    def __init__(self, form: Times = "r") -> None:
        self.form = form
        self.base: int | None = None
        """What relative times count from."""
        self._second = -1
        self._second_text = ""

    def begin(self, time_ns: int) -> None:
        """Count relative times from here, if they do not yet."""
        if self.base is None:
            self.base = time_ns

    def text(self, time_ns: int, time: str) -> str:
        """The time `time_ns`, whose text in a record is `time`."""
        if self.form == "r":
            self.begin(time_ns)
            passed = time_ns - (self.base or 0)
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
