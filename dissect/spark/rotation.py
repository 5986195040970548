"""Which captures of a folder that others write to can be read: those of `tcpdump -G/-C/-W`, `dumpcap -b`, or copied there.

No writer reports when a file is complete, so it is read

- when a newer file of its series is there (its name with other digits): the writer has closed it before;
- or when it was quiet for some seconds. It may be written on all the same: then the rest of it is read as soon as that is complete, and a
  packet that was cut at its end counts as damage only when nothing more came.

A file that was read is known again by its first bytes, so a ring that uses its names again brings new files, and one that is renamed is not
read again. One that is packed after it was read (`tcpdump -z gzip`) is read on in its packed form, if anything was added since. Files of
several series (both directions of a link, several interfaces) that were written at the same time belong together: one waits for the others
for a while.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec

from ..capture.files import PACKED
from ..errors import CaptureError
from . import storage
from .splits import HEAD, NEVER, FileError, digest
from .storage import Status

HOLD_NS = 60_000_000_000
"""How long a complete file waits for those of other series that were written at the same time, and a cut end for what may follow."""


class KnownFile(msgspec.Struct):
    """A file, and what it is known again by."""

    path: str
    head: str
    """Digest of its first `head_size` bytes."""
    head_size: int
    size: int
    first_ns: int | None


class ReadFile(KnownFile):
    """A file that was read, as far as it was there."""

    file: int
    """Index of the input."""
    packets: int = 0
    latest_ns: int = NEVER
    """The latest time of its packets."""
    error: FileError | None = None
    """What was wrong at its end, which is not reported yet: more may have come."""
    at_ns: int = 0
    """When it was read, by the wall clock."""
    superseded: bool = False
    """A newer file of its series was there when it was read."""


class SeenFile(KnownFile):
    """A file of the folder as it was when it was looked at."""

    status: Status
    series: str
    age: tuple[int, int, list[tuple[int, str]]]
    """Sorts the files of a series by when they were written."""
    since_ns: int
    """Since when it is as it is, by the wall clock."""
    read: ReadFile | None = None
    """What was read of it before."""
    superseded: bool = False
    """A newer file of its series is there."""
    end_ns: int | None = None
    """When the next file of its series begins."""
    complete: bool = False
    """It can be read, though more may be added."""
    final: bool = False
    """Certainly nothing will be added."""
    waits_ns: int | None = None
    """Since when it waits for files of other series."""

    @property
    def is_read(self) -> bool:
        """Whether nothing was added since it was read; what was complete before it was packed is not unpacked to find out."""
        if self.read is None:
            return False
        packed = self.read.path == unpacked(self.path) != self.path
        return self.read.size == self.size or (packed and self.read.superseded and self.read.error is None)


class Look(NamedTuple):
    """The state of a folder, compared with what was read of it."""

    ready: list[SeenFile]
    """Files that can be read, or read on, in the order of capture."""
    renamed: list[SeenFile]
    """Files of which all was read under another name, perhaps before they were packed."""
    ended: list[ReadFile]
    """Files whose cut end is certain by now: another was begun since and nothing came, they are gone, or nothing came for long."""
    missed: list[SeenFile]
    """Files that are gone or replaced before they were read as far as they had been seen; each is returned once."""


F = TypeVar("F", bound=KnownFile)


def natural(name: str) -> list[tuple[int, str]]:
    """Sorts names with numbers by the numbers."""
    return [(int(piece), "") if piece.isdigit() else (-1, piece) for piece in re.split(r"(\d+)", name)]


def unpacked(path: str) -> str:
    """The name that a packed file had before."""
    return next((path.removesuffix(suffix) for suffix in PACKED if path.endswith(suffix)), path)


def series(path: str) -> str:
    """What the names have in common that one capture gives its files."""
    folder, _, name = unpacked(path).rpartition("/")
    name = name.rstrip("0123456789")  # `tcpdump -C` puts a number behind all but the first
    return f"{folder}/{re.sub(r'[0-9]+', '#', name)}"


class Rotation:
    """The captures of a folder. `settle_ns`: how long a file has to be quiet."""

    def __init__(self, folder: str | Path, settle_ns: int, clock: Callable[[], int] = time.time_ns) -> None:
        self.folder = storage.normal(os.fspath(folder))
        self.settle_ns = settle_ns
        self._clock = clock
        self._known: dict[str, SeenFile] = {}
        """The files of the folder when it was last looked at."""

    def look(self, taken: Mapping[str, ReadFile], end: bool = False) -> Look:
        """Look at the folder. `taken`: what was read before, by path; `end`: nothing will be written any more."""
        now, root = self._clock(), storage.local(self.folder)
        try:
            if root is not None:
                os.scandir(root).close()  # a folder that is not there is not an empty one
            found = storage.listed(self.folder)
        except (OSError, CaptureError):
            return Look([], [], [], [])  # it may come back
        before, self._known = self._known, {}
        for path, status in found.items():
            one = before.get(path)
            self._known[path] = one if one is not None and one.status == status else _look_at(path, status, now)
        # Beside what it is made of, a packed file is a copy
        seen = sorted((one for one in self._known.values() if plain_of(one, self._known) is None), key=lambda one: one.age)
        newer: dict[str, SeenFile] = {}
        moved = self._moved(taken)
        for one in reversed(seen):
            after = newer.get(one.series)
            one.superseded, one.end_ns = (False, None) if after is None else (True, after.first_ns or after.end_ns)
            newer[one.series] = one
            one.read = _before(one, taken, moved)
            quiet = end or (one.size > 0 and now - one.since_ns >= self.settle_ns)
            one.complete, one.final = one.superseded or quiet, end or (one.superseded and quiet)
        renamed = [one for one in seen if one.read is not None and one.is_read and one.read.path != one.path]
        unread = [one for one in seen if not one.is_read]
        writing = [one for one in unread if not one.complete]
        ready, held = [], set()
        for one in unread:
            # Files of one series are never read out of order
            if one.series in held or not one.complete or _waits(one, writing, now):
                held.add(one.series)
            else:
                ready.append(one)
        return Look(ready, renamed, self._ended(seen, taken, now, end), self._missed(before, taken))

    def there(self, path: str) -> bool:
        """Whether a file was there when the folder was last looked at."""
        return path in self._known or not self._known

    def _moved(self, taken: Mapping[str, ReadFile]) -> dict[int | None, list[ReadFile]]:
        """What was read of files that are not there under their names any more, by the time of their first packets, which may be cut."""
        found: dict[int | None, list[ReadFile]] = {}
        for path, one in taken.items():
            there = self._known.get(path)
            if (one.first_ns is not None or one.error is not None) and (there is None or there.first_ns != one.first_ns):
                found.setdefault(one.first_ns, []).append(one)
        return found

    def _ended(self, seen: list[SeenFile], taken: Mapping[str, ReadFile], now: int, end: bool) -> list[ReadFile]:
        there = {one.read.path: one for one in seen if one.read is not None}
        found = []
        for old in taken.values():
            one = there.get(old.path)
            if old.error is None or (one is not None and one.size != old.size):
                continue  # what came since is read first
            patience_ns = self.settle_ns if one is None or one.superseded else HOLD_NS
            if end or one is None or now - old.at_ns >= patience_ns:
                found.append(old)
        return found

    def _missed(self, before: Mapping[str, SeenFile], taken: Mapping[str, ReadFile]) -> list[SeenFile]:
        inodes = {one.status.inode: one for one in self._known.values()}
        packed = [plain_of(one, before) for one in self._known.values()]
        packed_paths = {one.path for one in packed if one is not None}
        found = []
        for path, old in before.items():
            successors = self._known.get(path), inodes.get(old.status.inode), taken.get(path)
            # What was read of it may be known under another name since
            kept = old.is_read or any(one is not None and one.first_ns == old.first_ns and one.size >= old.size for one in successors)
            if old.first_ns is not None and not kept and path not in packed_paths:
                found.append(old)
        return found


def plain_of(packed: SeenFile, files: Mapping[str, F]) -> F | None:
    """The one of these files that a file is packed from, if any."""
    name = unpacked(packed.path)
    plain = files.get(name) if name != packed.path else None
    return plain if plain is not None and plain.first_ns is not None and packed.first_ns in (None, plain.first_ns) else None


def _before(one: SeenFile, taken: Mapping[str, ReadFile], moved: Mapping[int | None, list[ReadFile]]) -> ReadFile | None:
    """What was read of this file before: of one with these first bytes and this name, or one that was renamed or packed."""
    named = [taken[one.path]] if one.path in taken else []
    for old in [*named, *moved.get(one.first_ns, []), *moved.get(None, [])]:
        packed = old.path == unpacked(one.path) != one.path
        if packed or old is one.read or (one.size >= old.size and (old.head_size or not old.size) and same_file(one.path, old)):
            return old
    return plain_of(one, taken)


def _waits(one: SeenFile, writing: list[SeenFile], now: int) -> bool:
    """Whether a complete file waits for one of another series that is being written and began before it ended."""
    # Series do not change files at the very same time: those that began in its second half go with the next one
    middle = None if one.end_ns is None else ((one.first_ns or 0) + one.end_ns) // 2
    others = (other.first_ns for other in writing if other.series != one.series and other.first_ns is not None)
    if not one.superseded or not any(middle is None or first < middle for first in others):
        return False
    one.waits_ns = one.waits_ns or now
    return now - one.waits_ns < HOLD_NS


def _look_at(path: str, status: Status, now: int) -> SeenFile:
    data, first = b"", None
    # The plan says why there is no packet
    with suppress(OSError, CaptureError, StopIteration):
        data = storage.pieces(path, 0, min(HEAD, status.size))
        with storage.open_packets(path) as reader:
            first = next(reader.batches(1))[0].time_ns
    age = first or status.modified_ns, status.modified_ns, natural(path)
    return SeenFile(path, digest(data), len(data), status.size, first, status, series(path), age, min(now, status.modified_ns))


def same_file(path: str, old: KnownFile) -> bool:
    """Whether a file still begins as it did then."""
    with suppress(OSError, CaptureError):
        return digest(storage.pieces(path, 0, old.head_size)) == old.head
    return False
