"""Which captures of a folder that others write to can be read: those of `tcpdump -G/-C/-W`, `dumpcap -b`, or copied there.

Nobody tells when a file is complete, so it is taken

- when a newer file of its series is there (its name with other digits): whoever rotates has closed it before;
- or when it was quiet for some seconds. It may be written on all the same: then the rest of it is read as soon as that is complete, and a
  packet that was cut at its end counts as damage only when nothing more came.

A file that was read is known again by its first bytes, so a ring that uses its names again brings new files. Files of several series (both
directions of a link, several interfaces) that were written at the same time belong together: one waits for the others for a while.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import msgspec

from dissect.capture.files import open_capture
from dissect.errors import CaptureError
from dissect.spark.splits import NEVER, Trouble

HEAD = 4096
"""First bytes by which a file is known again."""

HOLD_NS = 60_000_000_000
"""How long a complete file waits for those of other series that were written at the same time, and a cut end for what may follow."""

PACKED = (".gz", ".zst", ".lz4", ".xz", ".bz2")


class Taken(msgspec.Struct):
    """A file that was read, as far as it was there."""

    file: int
    """Index of the input."""
    path: str
    head: str
    """Digest of its first `head_size` bytes."""
    head_size: int
    size: int
    first_ns: int | None
    packets: int = 0
    latest_ns: int = NEVER
    """The latest time of its packets."""
    trouble: Trouble | None = None
    """What was wrong at its end, which is not told yet: more may have come."""
    at_ns: int = 0
    """When it was read, by the wall clock."""


class Ready(msgspec.Struct):
    """A file that can be read, or read on where it was `taken` before."""

    path: str
    size: int
    head: str
    head_size: int
    first_ns: int | None
    superseded: bool
    taken: Taken | None


class Seen(msgspec.Struct):
    """A file of the folder as it was when it was looked at."""

    path: str
    size: int
    modified_ns: int
    series: str
    head: str
    head_size: int
    first_ns: int | None

    @property
    def age(self) -> tuple[int, int, list[tuple[int, str]]]:
        """Sorts the files of a series by when they were written."""
        return self.first_ns or self.modified_ns, self.modified_ns, natural(self.path)


def natural(name: str) -> list[tuple[int, str]]:
    """Sorts names with numbers by the numbers."""
    return [(int(piece), "") if piece.isdigit() else (-1, piece) for piece in re.split(r"(\d+)", name)]


def series(path: str) -> str:
    """What the names have in common that one capture gives its files."""
    for suffix in PACKED:
        path = path.removesuffix(suffix)
    name = Path(path).name.rstrip("0123456789")  # `tcpdump -C` puts a number behind all but the first
    return str(Path(path).parent / re.sub(r"\d+", "#", name))


class Rotation:
    """The captures of a folder. `settle_ns`: how long a file has to be quiet."""

    def __init__(self, folder: Path, settle_ns: int, clock: Callable[[], int] = time.time_ns) -> None:
        self.folder = folder
        self.settle_ns = settle_ns
        self._clock = clock
        self._quiet: dict[str, tuple[int, int, int]] = {}
        """Size, time of change, and since when they are known, of each file."""
        self._first: dict[tuple[str, str], int | None] = {}
        """When the first packet of a file was captured, by path and head."""
        self._known: dict[str, Seen] = {}
        """Files as they were when last looked at."""
        self._held: dict[tuple[str, str], int] = {}
        """Complete files that wait for others, and since when."""

    def look(self, taken: Mapping[str, Taken], end: bool = False) -> list[Ready]:
        """What can be read now, in the order of capture.

        `taken`: what was read before, by path; `end`: nothing will be written any more.
        """
        now = self._clock()
        seen = list(self._seen())
        groups: dict[str, list[Seen]] = {}
        for one in seen:
            groups.setdefault(one.series, []).append(one)
        newest = {name: max(many, key=lambda one: one.age) for name, many in groups.items()}
        complete, writing = [], []
        for one in seen:
            before = self._before(one, taken)
            if before is not None and self._twin(one, before):
                continue
            superseded = end or one is not newest[one.series]
            if before is not None and before.size == one.size:
                continue
            ready = Ready(one.path, one.size, one.head, one.head_size, one.first_ns, superseded, before)
            if superseded or (one.size and self._is_quiet(one, now)):
                complete.append((one, ready))
            else:
                writing.append(one)
        found, held = [], set()
        for one, ready in sorted(complete, key=lambda pair: pair[0].age):
            # Files of one series are never read out of order.
            if not end and (one.series in held or self._waits(one, ready, writing, groups[one.series], now)):
                held.add(one.series)
            else:
                found.append(ready)
        self._forget(seen)
        found.sort(key=lambda ready: (ready.first_ns or 0, natural(ready.path)))
        return found

    def ended(self, taken: Mapping[str, Taken], end: bool = False) -> list[Taken]:
        """Files whose cut end is certain by now: another was begun since, they are gone, or nothing came for long."""
        now = self._clock()
        waiting = [one for one in taken.values() if one.trouble is not None]
        if not waiting:
            return []
        newest: dict[str, Seen] = {}
        there = {}
        for one in self._seen():
            there[one.path] = one
            if one.series not in newest or one.age > newest[one.series].age:
                newest[one.series] = one
        found = []
        for old in waiting:
            now_there = there.get(old.path)
            same = now_there is not None and self._before(now_there, taken) is old
            if same and now_there is not None and now_there.size != old.size:
                continue  # what came since is read first
            if end or not same or newest[series(old.path)] is not now_there or now - old.at_ns >= HOLD_NS:
                found.append(old)
        return found

    def _seen(self) -> Iterator[Seen]:
        # First all names, then all sizes: whoever begins a file has closed the one before.
        paths = [path for path in self.folder.rglob("*") if not any(part.startswith(".") for part in path.relative_to(self.folder).parts)]
        known, self._known = self._known, {}
        for path in sorted(paths):
            name = str(path.absolute())
            try:
                if not path.is_file():
                    continue
                status = path.stat()
            except OSError:
                continue  # deleted since: a ring does that all the time
            one = known.get(name)
            if one is None or (one.size, one.modified_ns) != (status.st_size, status.st_mtime_ns):
                try:
                    with path.open("rb") as stream:
                        data = stream.read(min(HEAD, status.st_size))
                except OSError:
                    data = b""  # the plan says why
                head = digest(data)
                one = Seen(name, status.st_size, status.st_mtime_ns, series(name), head, len(data), self._first_ns(name, head))
            self._known[name] = one
            yield one

    def _first_ns(self, path: str, head: str) -> int | None:
        """When the first packet of a file was captured, None where it has none yet."""
        key = (path, head)
        if self._first.get(key) is None:
            self._first[key] = first_ns(path)
        return self._first[key]

    def _before(self, one: Seen, taken: Mapping[str, Taken]) -> Taken | None:
        """What was read of this file before: of one with this name and these first bytes, or of the one that it is packed from."""
        old = taken.get(one.path)
        if old is not None and one.size >= old.size and same_head(one.path, old):
            return old
        for suffix in PACKED:
            if one.path.endswith(suffix):
                plain = taken.get(one.path.removesuffix(suffix))
                if plain is not None and plain.first_ns is not None and one.first_ns in (None, plain.first_ns):
                    return plain
        return None

    @staticmethod
    def _twin(one: Seen, before: Taken) -> bool:
        """Whether a file is what another was packed to, which was read."""
        return one.path != before.path

    def _is_quiet(self, one: Seen, now: int) -> bool:
        size, modified, since = self._quiet.get(one.path, (-1, -1, now))
        if (size, modified) != (one.size, one.modified_ns):
            since = now
        self._quiet[one.path] = one.size, one.modified_ns, since
        return now - since >= self.settle_ns or now - one.modified_ns >= self.settle_ns

    def _waits(self, one: Seen, ready: Ready, writing: list[Seen], group: list[Seen], now: int) -> bool:
        """Whether a complete file waits for one of another series that is being written and began before it ended."""
        key = (one.path, one.head)
        begin = one.first_ns or 0
        end = min((other.first_ns for other in group if other.age > one.age and other.first_ns is not None), default=None)
        # Series do not change files at the very same time: those that began in its second half go with the next one.
        middle = None if end is None else (begin + end) // 2
        if not ready.superseded or not any(
            other.series != one.series and other.first_ns is not None and (middle is None or other.first_ns < middle) for other in writing
        ):
            self._held.pop(key, None)
            return False
        return now - self._held.setdefault(key, now) < HOLD_NS

    def _forget(self, seen: list[Seen]) -> None:
        """Drop what is known of files that are gone."""
        there = {(one.path, one.head) for one in seen}
        paths = {one.path for one in seen}
        self._quiet = {path: value for path, value in self._quiet.items() if path in paths}
        self._first = {key: value for key, value in self._first.items() if key in there}
        self._held = {key: value for key, value in self._held.items() if key in there}


def digest(data: bytes) -> str:
    """By which first bytes are compared."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def same_head(path: str, old: Taken) -> bool:
    """Whether a file still begins as when it was read."""
    try:
        with Path(path).open("rb") as stream:
            return digest(stream.read(old.head_size)) == old.head
    except OSError:
        return False


def first_ns(path: str) -> int | None:
    """When the first packet of a capture was captured; None where there is none, or no capture."""
    try:
        with open_capture(path) as reader:
            for batch in reader.batches(1):
                return int(batch.time_ns[0])
    except CaptureError:
        pass
    return None
