"""Which captures may be read, and those that are open: each is read once, in the background, and asked many times."""

from __future__ import annotations

import os
import stat
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from threading import Event, RLock, Thread
from time import monotonic
from typing import TYPE_CHECKING

from streamdump.capture.blocks import explain
from streamdump.capture.files import named_as_capture
from streamdump.errors import CaptureError, NoCapture, UsageError
from streamdump.filter import compile_filter
from streamdump.options import Options
from streamdump.render.clock import Clock
from streamdump.units import count

from ..indexed.reading import Reader, View
from ..run import FileRun, advice_on

if TYPE_CHECKING:
    from streamdump.filter import Filter

OPEN = 4
"""Captures that are open at a time; the one that was asked longest ago is closed."""

KEPT = 8
"""Filters of a capture whose matches are kept, and results of what has to read captures once more."""

WAIT_S = 40.0
"""Seconds that a call waits at most: the clients that wait least give up after 60."""

PAUSE_S = 0.02

LISTED, LOOKED_AT = 50, 20_000
"""Captures of a folder that are named, and files and folders that are looked at to find them."""


State = tuple[int, int, int, int]
"""What changes when a file does: device, inode, size, time of the last change."""


class Cancelled(Exception):
    """The client no longer waits for the answer."""


class Unfinished(Exception):
    """It takes longer than clients wait; the work goes on."""


class Call:
    """A call that may be cancelled, and how far it is, from 0 to 1."""

    def __init__(self) -> None:
        self.cancelled = Event()
        self.progress: float | None = None
        self._end = monotonic() + WAIT_S

    def check(self) -> None:
        """Raise `Cancelled` if nobody waits any more."""
        if self.cancelled.is_set():
            raise Cancelled

    def wait(self, done: Callable[[], bool], progress: Callable[[], float | None], what: str) -> None:
        """Wait until something is done; `Unfinished` if that takes too long."""
        while not done():
            self.check()
            self.progress = progress()
            if monotonic() > self._end:
                part = "" if self.progress is None else f": {self.progress:.0%} so far"
                raise Unfinished(f"{what}{part}; the work goes on, so make the same call again")
            self.cancelled.wait(PAUSE_S)


class Capture:
    """A capture, its index, and kept results of questions about it."""

    def __init__(self, path: Path, options: Options, name: str, state: State) -> None:
        """`name`: what the assistant calls it."""
        self.path, self.name, self.options, self.state = path, name, options, state
        self.users = 0
        self.changes: list[str] = []
        """What has happened to it, for the next answer."""
        try:
            self.run = FileRun([str(path)], options, prints=False)
        except CaptureError as error:
            # Its first bytes, which the command line shows, may be those of a key
            reason = "is not a capture" if isinstance(error, NoCapture) else f"{error.reason}{advice_on(error)}"
            raise CaptureError(reason, name, error.offset, error.packet) from None
        self.reader = Reader(self.run, self.run.inspector.options, Clock("r"))
        # It is not read for a screen
        self.reader.shown.set()
        self._views: OrderedDict[str, View] = OrderedDict()
        self._lock = RLock()
        self.reader.start()

    def close(self) -> None:
        """Stop all work on it."""
        with self._lock:
            for view in self._views.values():
                view.stopped = True
        self.reader.stop()

    def ready(self, call: Call) -> None:
        """Wait until all is read."""
        reader = self.reader
        call.wait(lambda: reader.done, lambda: reader.progress, f"{self.name} is still being read")

    def errors(self) -> list[str]:
        """What could not be read."""
        errors = (*self.run.errors, *self.run.inspector.errors)
        return [*(f"{error.reason}{advice_on(error)}" for error in errors), *self.reader.warned]

    def summary(self) -> list[str]:
        """When it was captured, and the closing line of the commands."""
        with self._lock:
            return self.run.introduction()

    def filter(self, text: str) -> Filter:
        """Compile a filter; raises `FilterError`."""
        asked = compile_filter(text, self.reader.options)
        if self.reader.clock.base is not None:
            asked.begin(self.reader.clock.base)
        return asked

    def view(self, text: str, call: Call) -> View:
        """The records that match a filter, all of them without one."""
        if not text.strip():
            return View(self.reader)
        every = max(1, len(self.reader.records))
        while True:
            view = self._view(text)
            try:
                call.wait(lambda: view.done, lambda: view.looked / every, f"{self.name} is still being filtered")  # noqa: B023
            except Cancelled:
                view.stopped = True
                raise
            if view.failed is not None:
                raise CaptureError(view.failed, self.name)
            # Another call may have stopped it
            if not view.stopped:
                return view

    def _view(self, text: str) -> View:
        with self._lock:
            view = self._views.get(text)
            if view is None or view.stopped or view.failed is not None:
                view = self._views[text] = View(self.reader, None, self.filter(text), follows=False)
            self._views.move_to_end(text)
            while len(self._views) > KEPT:
                self._views.popitem(last=False)[1].stopped = True
            return view


class Work:
    """Something that reads captures once more, in a thread of its own: `make` gives its lines, and calls what it is given from time to
    time, which ends it once nobody waits for it any more."""

    def __init__(self, make: Callable[[Callable[[], None]], list[str]]) -> None:
        self.lines: list[str] = []
        self.error: Exception | None = None
        self.done = self.stopped = False
        self._make = make
        Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        try:
            self.lines = self._make(self._check)
        except Exception as error:
            self.error = error
        self.done = True

    def _check(self) -> None:
        if self.stopped:
            raise Cancelled


class Captures:
    """The captures below some folders, a few of them open."""

    def __init__(self, roots: Sequence[str], options: Options) -> None:
        self.roots = [Path(os.path.realpath(one)) for one in roots]
        for one, root in zip(roots, self.roots, strict=True):
            if not root.is_dir():
                raise UsageError(f"--root {one}: no such folder")
        self.options = options
        self._work: OrderedDict[tuple[object, ...], Work] = OrderedDict()
        self._open: OrderedDict[Path, Capture] = OrderedDict()
        self._lock = RLock()

    def path_of(self, name: str) -> Path:
        """The file of that name below one of the folders, all links followed; `UsageError` for any other."""
        folders = ", ".join(map(str, self.roots))
        try:
            found = [Path(os.path.realpath(root / name)) for root in self.roots]
        except ValueError as error:
            raise UsageError(f"{name}: not the name of a file") from error
        below = [one for one in found if any(one.is_relative_to(root) for root in self.roots)]
        if not below:
            raise UsageError(f"{name}: not below {folders}; only captures there are read (--root)")
        return next((one for one in below if os.path.exists(one)), below[0])  # noqa: PTH110 - without an error for a long name

    @contextmanager
    def using(self, name: str, call: Call) -> Iterator[tuple[Capture, list[str]]]:
        """A capture that is read completely, and what has happened to it since the call before; it stays open meanwhile."""
        with self._lock:
            capture = self._get(name)
            capture.users += 1
        try:
            capture.ready(call)
            changes, capture.changes = capture.changes, []
            yield capture, changes
        finally:
            with self._lock:
                capture.users -= 1
                if not capture.users and self._open.get(capture.path) is not capture:
                    capture.close()

    def work(self, key: tuple[object, ...], what: str, call: Call, make: Callable[[Callable[[], None]], list[str]]) -> list[str]:
        """The lines that `make` gives (see `Work`), which are kept by `key`."""
        with self._lock:
            work = self._work.get(key)
            if work is None or work.stopped or work.error is not None:
                work = self._work[key] = Work(make)
            self._work.move_to_end(key)
            while len(self._work) > KEPT:
                self._work.popitem(last=False)[1].stopped = True
        try:
            call.wait(lambda: work.done, lambda: None, what)
        except Cancelled:
            work.stopped = True
            raise
        if isinstance(work.error, Cancelled):
            raise Unfinished(f"{what}; make the same call again")
        if work.error is not None:
            raise work.error
        return work.lines

    def close(self) -> None:
        """Close all."""
        with self._lock:
            for work in self._work.values():
                work.stopped = True
            for one in self._open.values():
                one.close()
            self._open.clear()

    def _get(self, name: str) -> Capture:
        path = self.path_of(name)
        try:
            now = path.stat()
        except OSError as error:
            missing = isinstance(error, FileNotFoundError)
            raise CaptureError(f"no such file; {self._listed(*self.roots)}" if missing else explain(error), name) from error
        if stat.S_ISDIR(now.st_mode):
            raise UsageError(f"{name}: is a folder; {self._listed(path)}")
        if not stat.S_ISREG(now.st_mode):
            raise CaptureError("is not a regular file", name)
        capture, state = self._open.get(path), (now.st_dev, now.st_ino, now.st_size, now.st_mtime_ns)
        # One that grows all the time is read to its end before it is read again
        if capture is None or (capture.reader.done and state != capture.state):
            new = self._open[path] = Capture(path, self.options, name, state)
            if capture is not None:
                sizes = f"from {count(capture.state[2], 'byte')} to {now.st_size:,}"
                new.changes = [f"{name} has changed since it was read, {sizes}: it was read again"]
                if not capture.users:
                    capture.close()
            capture = new
        self._open.move_to_end(path)
        for old in [one for one in self._open.values() if not one.users and one is not capture][: max(0, len(self._open) - OPEN)]:
            del self._open[old.path]
            old.close()
        return capture

    def _listed(self, *folders: Path) -> str:
        """Which captures there are below folders, as `open` takes their names."""
        every = [one for folder in folders for one in below(folder)]
        found = [str(one.relative_to(self.roots[0]) if len(self.roots) == 1 else one) for one in every]
        more = f" and {len(found) - LISTED:,} more" if len(found) > LISTED else ""
        return f"captures there: {', '.join(found[:LISTED])}{more}" if found else "there are no captures"


def below(folder: Path) -> Iterator[Path]:
    """The captures below a folder, by their names, as far as a bounded search finds them; links are not followed."""

    def entries() -> Iterator[Path]:
        for place, folders, names in os.walk(folder):
            folders[:] = sorted(one for one in folders if not one.startswith("."))
            yield Path(place)
            yield from (Path(place, name) for name in sorted(names))

    found = (one for one in islice(entries(), LOOKED_AT) if named_as_capture(one.name) and not one.name.startswith("."))
    return (one for one in found if one.is_file() and not one.is_symlink())
