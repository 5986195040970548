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
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from ..capture.files import PACKED
from ..errors import CaptureError
from . import storage
from .splits import HEAD, FileError, digest
from .storage import Status

if TYPE_CHECKING:
    from .pipeline import State

HOLD_NS = 60_000_000_000
"""How long a complete file waits for those of other series that were written at the same time, and a cut end for what may follow."""

GONE_KEPT = 10_000
"""Files that were read and are gone, and may come back: a folder that vanished for a while, or under another name."""


class Read(msgspec.Struct):
    """What was read of a file."""

    file: int
    """Index of the input."""
    size: int = 0
    """Bytes of the file up to which it was read."""
    packets: int = 0
    error: FileError | None = None
    """What was wrong at its end, which is not reported yet: more may have come."""


class KnownFile(msgspec.Struct):
    """A file of the folder as it was when it was last looked at, and what was read of it."""

    path: str
    status: Status
    head: str
    """Digest of its first bytes."""
    first_ns: int | None
    since_ns: int
    """Since when it is as it is, by the wall clock."""
    seen_ns: int
    """When it was first seen so: a copy may keep the time of its original."""
    end_ns: int | None = None
    """When the next file of its series was started, about; None: it is the newest."""
    read: Read | None = None

    @property
    def is_read(self) -> bool:
        """Whether nothing was added since it was read."""
        return self.read is not None and self.read.size >= self.status.size

    @property
    def begin_ns(self) -> int:
        """When it was started, about."""
        return self.first_ns or self.status.modified_ns


@lru_cache(1 << 16)
def natural(name: str) -> list[tuple[int, str]]:
    """Sorts names with numbers by the numbers."""
    return [(int(piece), "") if piece.isdigit() else (-1, piece) for piece in re.split(r"(\d+)", name)]


def unpacked(path: str) -> str:
    """The name that a packed file had before."""
    return next((path.removesuffix(suffix) for suffix in PACKED if path.endswith(suffix)), path)


@lru_cache(1 << 16)
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

    def look(self, state: State, end: bool = False) -> list[KnownFile]:
        """Look at the folder, and return the files that can be read, or read on, in the order of capture. `end`: nothing will be written
        any more.

        `state` gets the files as they are now, and the errors that became certain: of files that are gone or replaced before they were read
        as far as they had been seen, and cut ends of those that are gone, or to which nothing came for a while.
        """
        now, root = self._clock(), storage.local(self.folder)
        try:
            if root is not None:
                os.scandir(root).close()  # a folder that is not there is not an empty one
            found = storage.listed(self.folder)
        except (OSError, CaptureError):
            return []  # it may come back
        seen = sorted(_update(state, found, now), key=lambda one: (one.begin_ns, one.status.modified_ns, natural(one.path)))
        newer: dict[str, KnownFile] = {}
        for one in reversed(seen):
            after = newer.get(series(one.path))
            one.end_ns = None if after is None else after.begin_ns
            newer[series(one.path)] = one

        def quiet(one: KnownFile, ns: int) -> bool:
            return end or now - one.since_ns >= ns

        def waits(one: KnownFile) -> bool:
            """Whether a complete file waits for one of another series that is being written and began before it ended."""
            if one.end_ns is None or end or now - one.seen_ns >= HOLD_NS:
                return False
            # Series do not change files at the very same time: those that began in its second half go with the next one
            middle = (one.begin_ns + one.end_ns) // 2
            others = (other.first_ns for other in writing if series(other.path) != series(one.path))
            return any(first_ns is not None and first_ns < middle for first_ns in others)

        def is_written(one: KnownFile) -> bool:
            # An empty file waits until another is started
            return one.end_ns is None and not end and not (one.status.size and quiet(one, self.settle_ns))

        unread = [one for one in seen if not one.is_read]
        writing = [one for one in unread if is_written(one)]
        ready, held = [], set()
        for one in unread:
            # Files of one series are never read out of order
            if series(one.path) in held or is_written(one) or waits(one):
                held.add(series(one.path))
            else:
                ready.append(one)
        for one in seen:
            # What came since it was read is read first
            if one.is_read and quiet(one, HOLD_NS if one.end_ns is None else self.settle_ns):
                _end(state, one)
        return ready


def _update(state: State, found: Mapping[str, Status], now: int) -> list[KnownFile]:
    """Note the files of a folder: those that changed, with what was read of them under this name or another, and those that are gone.

    Returns those that are there, without copies.
    """
    before, state.taken = state.taken, {}
    for path, status in found.items():
        one = before.get(path)
        state.taken[path] = one if one is not None and one.status == status else _look_at(path, status, now)
    changed = [one for one in before.values() if state.taken.get(one.path) is not one and not _is_copy(one, before)]
    gone = {id(one): one for one in (*state.gone, *changed)}
    names: defaultdict[str | int | None, list[KnownFile]] = defaultdict(list)
    """Those that are gone, the last first, by name and by the time of the first packet, which may be cut."""
    for old in reversed(gone.values()):
        names[old.path].append(old)
        # One without packets may begin as any other does
        if old.first_ns is not None or (old.read is not None and old.read.error is not None):
            names[old.first_ns].append(old)
    # Beside what it is made of, a packed file is a copy
    seen = [one for one in state.taken.values() if not _is_copy(one, state.taken)]
    for one in seen:
        keys = (one.path, unpacked(one.path), one.first_ns, None) if one.read is None else ()
        for old in (old for key in keys for old in names[key] if _continues(one, old)):
            gone.pop(id(old), None)
            one.read = one.read or old.read
            if one.read is not None and _is_packed(one, old):
                # What was complete before is not unpacked to find out
                complete = old.end_ns is not None and old.is_read and one.read.error is None
                one.read = msgspec.structs.replace(one.read, size=one.status.size if complete else 0)
    for old in gone.values():
        _end(state, old)
    state.gone = [old for old in gone.values() if old.is_read]
    # All of them are, if the folder vanished for a while
    if found:
        del state.gone[:-GONE_KEPT]
    return seen


def _end(state: State, one: KnownFile) -> None:
    """Report what is wrong with a file that nothing is added to any more."""
    read = one.read or Read(state.files)
    error = read.error
    if one.first_ns is not None and not one.is_read:
        reason = "was deleted or written anew before it was read"
        error = FileError(read.file, one.path, read.size or None, None, reason, one.status.size - read.size)
        state.files = max(state.files, read.file + 1)
    if error is not None:
        state.errors.append(error)
        one.read = msgspec.structs.replace(read, error=None)


def _look_at(path: str, status: Status, now: int) -> KnownFile:
    data, first = b"", None
    # The plan says why there is no packet
    with suppress(OSError, CaptureError, StopIteration):
        data = storage.pieces(path, 0, min(HEAD, status.size))
        with storage.open_packets(path) as reader:
            first = next(reader.batches(1))[0].time_ns
    return KnownFile(path, status, digest(data), first, min(now, status.modified_ns), now)


def _is_packed(one: KnownFile, old: KnownFile) -> bool:
    return old.path == unpacked(one.path) != one.path


def _continues(one: KnownFile, old: KnownFile) -> bool:
    """Whether a file is what another was, perhaps with more in it, under another name, or packed."""
    if _is_packed(one, old):
        return None in (one.first_ns, old.first_ns) or one.first_ns == old.first_ns
    return old.first_ns in (None, one.first_ns) and old.status.size > 0 and same_file(one.path, old)


def _is_copy(one: KnownFile, files: Mapping[str, KnownFile]) -> bool:
    """Whether a file is packed from one of these."""
    plain = files.get(unpacked(one.path), one)
    return plain is not one and plain.first_ns is not None and _continues(one, plain)


def same_file(path: str, old: KnownFile) -> bool:
    """Whether a file still begins as it did then."""
    with suppress(OSError, CaptureError):
        return digest(storage.pieces(path, 0, min(HEAD, old.status.size))) == old.head
    return False
