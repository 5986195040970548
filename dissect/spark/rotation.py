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
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from ..capture.files import PACKED
from ..errors import CaptureError
from . import storage
from .splits import HEAD, NEVER, FileError, digest

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
    error: FileError | None = msgspec.field(default=None, name="trouble")
    """What was wrong at its end, which is not reported yet: more may have come. Its key is that of states written before."""
    at_ns: int = 0
    """When it was read, by the wall clock."""
    superseded: bool = False
    """A newer file of its series was there when it was read."""


class Ready(KnownFile):
    """A file that can be read, or read on where it was `taken` before."""

    superseded: bool
    """A newer file of its series is there."""
    final: bool
    """Certainly nothing will be added."""
    taken: ReadFile | None


class Stat(NamedTuple):
    """The state of a file, without reading it."""

    size: int
    modified_ns: int
    changed_ns: int
    """When its content, owner or mode were changed."""
    inode: tuple[int, int] | str
    """What stays when it is renamed; an object of a store cannot be."""


class SeenFile(KnownFile):
    """A file of the folder as it was when it was looked at."""

    status: Stat
    series: str
    age: tuple[int, int, list[tuple[int, str]]]
    """Sorts the files of a series by when they were written."""
    known: ReadFile | None = None
    """What was read of it, once the first bytes have been compared."""


def natural(name: str) -> list[tuple[int, str]]:
    """Sorts names with numbers by the numbers."""
    return [(int(piece), "") if piece.isdigit() else (-1, piece) for piece in re.split(r"(\d+)", name)]


def series(path: str) -> str:
    """What the names have in common that one capture gives its files."""
    for suffix in PACKED:
        path = path.removesuffix(suffix)
    folder, _, name = path.rpartition("/")
    name = name.rstrip("0123456789")  # `tcpdump -C` puts a number behind all but the first
    return f"{folder}/{re.sub(r'[0-9]+', '#', name)}"


class Rotation:
    """The captures of a folder. `settle_ns`: how long a file has to be quiet."""

    def __init__(self, folder: str | Path, settle_ns: int, clock: Callable[[], int] = time.time_ns) -> None:
        self.folder = storage.normal(os.fspath(folder))
        self.settle_ns = settle_ns
        self._clock = clock
        self._quiet: dict[str, tuple[int, int, int]] = {}
        """Size, time of change, and since when they are known, of each file."""
        self._known: dict[str, SeenFile] = {}
        """Files as they were when last looked at."""
        self._held: dict[tuple[str, str], int] = {}
        """Complete files that wait for others, and since when."""
        self._missed: list[SeenFile] = []
        """Files that were gone, or replaced, since they were last looked at."""
        self._going_on: set[str] = set()
        """Files that were read and have more to read, perhaps under another name; by their names then."""

    def look(self, taken: Mapping[str, ReadFile], end: bool = False) -> list[Ready]:
        """What can be read now, in the order of capture.

        `taken`: what was read before, by path; `end`: nothing will be written any more.
        """
        now = self._clock()
        seen = self._seen()
        if seen is None:
            return []
        moved = self._moved(taken)
        self._going_on.clear()
        groups: dict[str, list[SeenFile]] = {}
        for one in sorted(seen, key=lambda one: one.age):
            groups.setdefault(one.series, []).append(one)
        complete, writing = [], []
        for one in seen:
            before = self._before(one, taken, moved)
            packed = self._packed_from(one, taken)
            if before is None and packed is not None:
                if isinstance(packed, SeenFile) or (packed.superseded and packed.error is None) or packed.path in self._known:
                    continue  # a copy: the packer has not removed the other yet, or that was complete when it was read
                before = packed
            known = before is not None and before.size == one.size
            if before is not None:
                if known and before.path == one.path:
                    continue
                self._going_on.add(before.path)
            superseded = one is not groups[one.series][-1]
            quiet = bool(one.size) and self._is_quiet(one, now)
            final = end or (superseded and quiet)
            ready = Ready(one.path, one.head, one.head_size, one.size, one.first_ns, superseded, final, before)
            if end or superseded or quiet or known:
                complete.append((one, ready))
            else:
                writing.append(one)
        ends = _ends(groups.values()) if writing and not end else {}
        found, held = [], set()
        for one, ready in sorted(complete, key=lambda pair: pair[0].age):
            # Files of one series are never read out of order.
            if not end and (one.series in held or self._waits(one, ready, writing, ends, now)):
                held.add(one.series)
            else:
                found.append(ready)
        self._forget(seen)
        found.sort(key=lambda ready: (ready.first_ns is None, ready.first_ns or 0, natural(ready.path)))
        return found

    def ended(self, taken: Mapping[str, ReadFile], end: bool = False) -> list[ReadFile]:
        """Files whose cut end is certain by now: another was begun since and nothing came, they are gone, or nothing came for long.

        To be asked after `look`: what came since is read first.
        """
        now = self._clock()
        waiting = [one for one in taken.values() if one.error is not None and one.path not in self._going_on]
        seen = self._seen() if waiting else None
        if seen is None:
            return []
        there = {one.path: one for one in seen}
        newest = {one.series: one for one in sorted(seen, key=lambda one: one.age)}
        found = []
        for old in waiting:
            now_there = there.get(old.path)
            same = now_there is not None and self._before(now_there, taken, {}) is old
            if same and now_there is not None and now_there.size != old.size:
                continue  # it came just now
            patience_ns = HOLD_NS if newest.get(series(old.path)) is now_there else self.settle_ns
            if end or not same or now - old.at_ns >= patience_ns:
                found.append(old)
        return found

    def missed(self, taken: Mapping[str, ReadFile]) -> list[SeenFile]:
        """Files that were seen, and are gone or replaced before they were read up to that; each is returned once."""
        missed, self._missed = self._missed, []
        names = {one.status.inode: path for path, one in self._known.items()}
        return [
            one
            for one in missed
            if one.first_ns is not None
            and not ((old := taken.get(one.path)) is not None and old.size >= one.size and old.first_ns == one.first_ns)
            and not any(one.path + suffix in self._known for suffix in PACKED)
            and names.get(one.status.inode) in (None, one.path)
        ]

    def there(self, path: str) -> bool:
        """Whether a file was there when the folder was last looked at."""
        return path in self._known or not self._known

    def _seen(self) -> list[SeenFile] | None:
        """The files that are there; None where the folder is not."""
        try:
            found = _listed(self.folder)
        except (OSError, CaptureError):
            return None  # it may come back
        known, self._known = self._known, {}
        for path, status in found.items():
            one = known.get(path)
            if one is None or one.status[:3] != status[:3]:
                before, one = one, _look_at(path, status, one)
                if before is not None and not _goes_on(before, one):
                    self._missed.append(before)
            self._known[path] = one
        self._missed += [one for path, one in known.items() if path not in self._known]
        return list(self._known.values())

    def _moved(self, taken: Mapping[str, ReadFile]) -> dict[int | None, list[ReadFile]]:
        """What was read of files that are not there under their names any more, by the time of their first packets."""
        found: dict[int | None, list[ReadFile]] = {}
        for path, one in taken.items():
            there = self._known.get(path)
            if one.first_ns is not None and (there is None or there.first_ns != one.first_ns):
                found.setdefault(one.first_ns, []).append(one)
        return found

    def _before(self, one: SeenFile, taken: Mapping[str, ReadFile], moved: Mapping[int | None, list[ReadFile]]) -> ReadFile | None:
        """What was read of this file before: of one with these first bytes and this name, or one that was renamed."""
        candidates = moved.get(one.first_ns, []) if one.first_ns is not None else []
        if one.path in taken:
            candidates = [taken[one.path], *candidates]
        for old in candidates:
            if one.known is not old and one.size >= old.size and (old.head_size or not old.size) and same_file(one.path, old):
                one.known = old
            if one.known is old:
                return old
        return None

    def _packed_from(self, one: SeenFile, taken: Mapping[str, ReadFile]) -> ReadFile | SeenFile | None:
        """The file that this one is packed from: as it was read, or as it is there."""
        plain = next((one.path.removesuffix(suffix) for suffix in PACKED if one.path.endswith(suffix)), None)
        if plain is None:
            return None
        candidates: list[ReadFile | SeenFile | None] = [taken.get(plain), self._known.get(plain)]
        fits = (found for found in candidates if found and found.first_ns is not None and one.first_ns in (None, found.first_ns))
        return next(fits, None)

    def _is_quiet(self, one: SeenFile, now: int) -> bool:
        size, modified, since = self._quiet.get(one.path, (-1, -1, now))
        if (size, modified) != one.status[:2]:
            since = now
        self._quiet[one.path] = *one.status[:2], since
        return now - since >= self.settle_ns or now - one.status.modified_ns >= self.settle_ns

    def _waits(self, one: SeenFile, ready: Ready, writing: list[SeenFile], ends: Mapping[str, int], now: int) -> bool:
        """Whether a complete file waits for one of another series that is being written and began before it ended."""
        key = (one.path, one.head)
        begin = one.first_ns or 0
        end = ends.get(one.path)
        # Series do not change files at the very same time: those that began in its second half go with the next one.
        middle = None if end is None else (begin + end) // 2
        if not ready.superseded or not any(
            other.series != one.series and other.first_ns is not None and (middle is None or other.first_ns < middle) for other in writing
        ):
            self._held.pop(key, None)
            return False
        return now - self._held.setdefault(key, now) < HOLD_NS

    def _forget(self, seen: list[SeenFile]) -> None:
        """Forget files that are gone."""
        there = {(one.path, one.head) for one in seen}
        self._quiet = {path: value for path, value in self._quiet.items() if path in self._known}
        self._held = {key: value for key, value in self._held.items() if key in there}


def _listed(folder: str) -> dict[str, Stat]:
    """The files of a folder, by name in this order."""
    path = storage.local(folder)
    if path is None:
        return {name: Stat(size, modified_ns, modified_ns, name) for name, (size, modified_ns) in sorted(storage.listed(folder).items())}
    # First all names, then all sizes: who starts a file has closed the one before
    found = {}
    for one in sorted(_names(path)):
        try:
            status = os.stat(one)  # noqa: PTH116 - its name need not be UTF-8
        except OSError:
            continue  # deleted since: a ring does that all the time
        if stat.S_ISREG(status.st_mode):
            inode = status.st_dev, status.st_ino
            found[storage.normal(one)] = Stat(status.st_size, status.st_mtime_ns, status.st_ctime_ns, inode)
    return found


def _names(folder: Path) -> Iterator[str]:
    """The names in a folder and those below it that are not hidden. A link to what lies in the folder too is a second name of it."""
    root = folder.resolve()
    top = str(folder.absolute())
    waiting = [top]
    while waiting:
        at = waiting.pop()
        try:
            with os.scandir(at) as entries:
                for entry in entries:
                    if entry.name.startswith(storage.HIDDEN):
                        continue
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                    elif not entry.is_symlink() or root not in Path(entry.path).resolve().parents:
                        yield entry.path
        except OSError:
            if at == top:
                raise


def _look_at(path: str, status: Stat, before: SeenFile | None) -> SeenFile:
    data = b""
    with suppress(OSError, CaptureError):  # the plan says why
        data = storage.pieces(path, 0, min(HEAD, status.size))
    head = digest(data)
    same = before is not None and before.head == head and before.status.inode == status.inode
    first = before.first_ns if before is not None and same else None
    if first is None:
        first = first_ns(path)
    age = first or status.modified_ns, status.modified_ns, natural(path)
    return SeenFile(path, head, len(data), status.size, first, status, series(path), age)


def _goes_on(before: SeenFile, now: SeenFile) -> bool:
    """Whether a file is what it was, or more."""
    return now.size >= before.size and (before.first_ns is None or now.first_ns == before.first_ns)


def _ends(groups: Iterable[list[SeenFile]]) -> dict[str, int]:
    """By path, when the earliest of the later files of the same series begins."""
    found = {}
    for group in groups:
        end = None
        for one in reversed(group):
            if end is not None:
                found[one.path] = end
            if one.first_ns is not None:
                end = one.first_ns if end is None else min(end, one.first_ns)
    return found


def same_file(path: str, old: KnownFile) -> bool:
    """Whether a file still begins as it did then, and has no fewer bytes."""
    with suppress(OSError, CaptureError):
        found = storage.status(path)
        return found is not None and found.size >= old.size and digest(storage.pieces(path, 0, old.head_size)) == old.head
    return False


def first_ns(path: str) -> int | None:
    """When the first packet of a capture was captured; None where there is none, or no capture."""
    with suppress(CaptureError), storage.open_packets(path) as reader:
        for packets in reader.batches(1):
            return packets[0].time_ns
    return None
