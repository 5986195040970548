"""What a streaming query knows of a folder that captures are written to: offsets that say which files were read, and how far.

An offset holds all that another process needs to go on: of each file what `Rotation` knows it again by, and its number of packets. So a
capture that is renamed or packed after it was read is not read again, and one that grows is read on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from streamdump.errors import CaptureError, UsageError
from streamdump.spark.rotation import ReadFile, Ready, Rotation
from streamdump.spark.splits import Plan, Split, Trouble, plan

GONE_KEPT = 1000
"""Files that were read and are gone, and may come back under another name."""


class Offset(msgspec.Struct):
    """Up to where a folder was read."""

    files: int = 0
    """Files read so far: the index of the next one."""
    taken: list[ReadFile] = []


class Arrivals:
    """The captures of a folder, as they are completed."""

    def __init__(
        self, folder: str, settle_ns: int, target: int, skip_damage: bool = False, clock: Callable[[], int] = time.time_ns
    ) -> None:
        self._rotation = Rotation(folder, settle_ns, clock)
        self._target = target
        self._skip = skip_damage
        self._plans: dict[tuple[str, int], Plan] = {}
        """Of files that are to be read, by path and size."""

    def latest(self, start: dict[str, Any], most: int | None = None, end: bool = False) -> dict[str, Any]:
        """The offset behind all that can be read now, of at most so many files. `end`: read what may still be written to too."""
        before = msgspec.convert(start, Offset)
        taken = {one.path: one for one in before.taken}
        ready = self._rotation.look(taken, end)[:most]
        if not ready:
            return start
        now = Offset(before.files)
        for one in ready:
            found = self._plan(one.path, one.size)
            self._check(one, found.troubles)
            old = one.taken
            if old is not None:
                taken.pop(old.path, None)
            index = now.files if old is None else old.file
            now.files += old is None
            packets = sum(split.packets for split in found.splits)
            taken[one.path] = ReadFile(index, one.path, one.head, one.head_size, one.size, one.first_ns, packets, superseded=one.superseded)
        gone = [one for one in taken.values() if not self._rotation.there(one.path)]
        for old in sorted(gone, key=lambda one: one.file)[:-GONE_KEPT]:
            del taken[old.path]
        now.taken = list(taken.values())
        made: dict[str, Any] = msgspec.to_builtins(now)
        return made

    def splits(self, start: dict[str, Any], end: dict[str, Any]) -> list[Split]:
        """What lies between two offsets."""
        before = {one.file: one.packets for one in msgspec.convert(start, Offset).taken}
        found = []
        for one in msgspec.convert(end, Offset).taken:
            after = before.get(one.file, 0)
            if one.packets <= after:
                continue
            for split in self._plan(one.path, one.size).splits:
                packets = min(split.packets, one.packets - split.number)
                if split.number + packets > after:
                    found.append(msgspec.structs.replace(split, file=one.file, packets=packets, after=after, flows=b""))
        self._plans.clear()
        return found

    def _plan(self, path: str, size: int) -> Plan:
        made = self._plans.get((path, size))
        if made is None:
            made = self._plans[path, size] = plan([path], self._target)
        return made

    def _check(self, one: Ready, troubles: Sequence[Trouble]) -> None:
        for trouble in troubles:
            # A cut end may go on.
            if trouble.fatal and not self._skip and (one.final or trouble.offset is None):
                error = CaptureError(trouble.reason, one.path, trouble.offset)
                raise UsageError(f"{error}; .option('damaged', 'skip') reads what can be read")
