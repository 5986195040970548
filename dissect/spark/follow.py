"""Follows a folder that captures are written to: a micro-batch for the files that became complete, until it is stopped.

The state between two micro-batches, which a killed driver leaves too, is in `.follow` of the output: the state, and that of the
open conversations as rows in Parquet files (`streamdump.spark.flows`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import msgspec

from ..capture.files import PACKED
from ..errors import CaptureError, UsageError
from . import storage
from .pipeline import FORMAT, Batch, Pipeline, PipelineSettings, Points, Progress, State, Unit, likeness
from .rotation import ReadFile, Ready, Rotation, SeenFile, same_file
from .session import of_spark
from .sink import DeltaSink, Sink
from .splits import NEVER, FileError, Plan
from .tables import Input

FOLDER = ".follow"

BATCH_BYTES = 1 << 30
"""Maximum bytes of the files of one micro-batch; a larger file is one by itself."""

ATTEMPTS = 3
"""How often a micro-batch is tried whose files are deleted while it reads them, until it only reports that they are."""

GONE_KEPT = 10_000
"""Files that were read and are gone, and may come back: a folder that vanished for a while, or under another name."""


class Follow(Pipeline):
    """Reads the captures of a folder as they become complete, and adds to the tables in `out`."""

    def __init__(self, settings: PipelineSettings, out: str, rotation: Rotation, show: Callable[[Progress], None] = lambda _: None) -> None:
        super().__init__(settings, out, lambda place: place.at(FOLDER), show)
        self.rotation = rotation
        if settings.form != "delta" and self.out.path is None:
            raise UsageError(f"{out}: to an object store --follow writes --format delta, since renaming is no commit there")
        self.sink = (DeltaSink if settings.form == "delta" else Sink)(self.folder, self.out, settings.fields)
        # The carried state has bytes as they were captured, secrets too, next to tables that are to be shared
        self.sink.lock("another streamdump follows into it", 0o700)
        try:
            self.state = self._load()
            self.points = Points(settings, self.state.networks)
        except BaseException:
            self.close()
            raise

    def _load(self) -> State:
        settings = self.settings
        # Keys may come from elsewhere later
        options = replace(settings.options, keylog=())
        like = likeness({"folder": storage.normal(settings.sources[0]), "--format": settings.form, "way to decode": options})
        like |= {"--separate-points": settings.separate, "--point": settings.point}
        state = self.sink.load(State)
        if state is None:
            if self.sink.rows:
                raise UsageError(f"{self.sink.committed}: is missing, so the contents of the tables are unknown; choose another --out")
            self.sink.begin()
            return State(FORMAT, like)
        for what, value in {"version of streamdump": FORMAT, **like}.items():
            if {"version of streamdump": state.v, **state.like}.get(what) != value:
                raise UsageError(f"{self.out}: was started with other options (another {what}); choose another --out")
        return state

    def step(self, end: bool = False) -> Batch | None:
        """A micro-batch of what can be read now, None where there is nothing to do. `end`: nothing will be written any more, and the
        conversations that are open end with the last file."""
        for attempt in range(ATTEMPTS + 1):
            found = self.rotation.look(self.state.taken, end)
            self._lost(self.rotation.missed(self.state.taken))
            ready = _some(found) if attempt < ATTEMPTS else []
            last = end and len(ready) == len(found)
            ended = self.rotation.ended(self.state.taken, end)
            if not ready and not ended and not (last and self.state.carry):
                return None
            try:
                return self._batch(ready, [one.error for one in ended if one.error is not None], last)
            except Exception as error:
                if not isinstance(error, OSError | CaptureError) and not of_spark(error):
                    raise
                # A ring deletes files. What is still there is read, what is not is in `errors` next time.
                gone = [one for one in ready if not same_file(one.path, one)]
                if not gone:
                    raise
                self._lost(gone)
        raise AssertionError

    def _batch(self, ready: list[Ready], ended: list[FileError], last: bool) -> Batch:
        state = self.state.next()
        copies = storage.folder(self.cluster.scratch or self.folder.name).at("unpacked")
        found = self.look([one.path for one in ready], sum(one.size for one in ready), copies)
        for one in ended:
            state.taken[one.path] = msgspec.structs.replace(state.taken[one.path], error=None)
        errors = [*ended, *self._take(state, ready, found)]
        paths = {taken.file: path for path, taken in state.taken.items()}
        gone = [one for one in state.taken.values() if one.error is None and not self.rotation.there(one.path)]
        for old in sorted(gone, key=lambda one: one.at_ns)[:-GONE_KEPT]:
            del state.taken[old.path]
        batch = self.unit(Unit(found, paths, self._inputs(state, found, ready), errors, last), state)
        copies.remove()
        return msgspec.structs.replace(batch, files=len(ready))

    def _take(self, state: State, ready: list[Ready], found: Plan) -> list[FileError]:
        """Give files their index of this run, leave out what was read before, and note what is read now; return the errors to report."""
        indexes = []
        for one in ready:
            indexes.append(state.files if one.taken is None else one.taken.file)
            state.files += one.taken is None
        for one, index in zip(ready, indexes, strict=True):
            if one.taken is None:
                state.points.add(index, self.points.of(one.path))
        size = [one.size for one in ready]
        packets = [0] * len(ready)
        for split in found.splits:
            at = split.file
            before = ready[at].taken
            split.file = indexes[at]
            packets[at] = split.number + split.packets
            if split.stop is not None and split.path == ready[at].path:
                size[at] = split.stop
            if before is not None:
                split.after = before.packets
                split.latest_ns = max(split.latest_ns, before.latest_ns)
        found.splits = [split for split in found.splits if split.number + split.packets > split.after]
        reported, held = [], {}
        for error in found.errors:
            one = ready[error.file]
            if error.fatal and not one.final and error.offset is not None:
                held[error.file] = error
            else:
                reported.append(error)
            error.file = indexes[error.file]
        for one in ready:
            if one.taken is not None:
                state.taken.pop(one.taken.path, None)  # it may have another name now
        for at, one in enumerate(ready):
            state.taken[one.path] = ReadFile(
                one.path,
                one.head,
                one.head_size,
                size[at],
                one.first_ns,
                indexes[at],
                packets[at],
                found.files[at].latest_ns,
                held.get(at),
                time.time_ns(),
                one.superseded,
            )
        return reported

    def _inputs(self, state: State, found: Plan, ready: list[Ready]) -> list[Input]:
        """The rows of table files: what is new of these files."""
        inputs = []
        for at, one in enumerate(ready):
            taken, before = state.taken[one.path], one.taken
            # Packed since, it may be smaller
            size, packets = (0, 0) if before is None else (before.size if before.size <= taken.size else 0, before.packets)
            if before is None or taken.packets > packets:
                more = found.files[at].head, found.files[at].size
                inputs.append(Input(taken.file, taken.path, taken.size - size, taken.packets - packets, self.points.of(one.path), *more))
        return inputs

    def _lost(self, gone: Sequence[Ready | SeenFile]) -> None:
        """Remember files that were deleted or replaced before they were read: errors of files that are never read again."""
        state = self.state
        for one in gone:
            before = one.taken if isinstance(one, Ready) else state.taken.get(one.path)
            if isinstance(one, SeenFile) and before is not None and before.first_ns != one.first_ns:
                before = None
            if any(storage.status(one.path + suffix) is not None for suffix in PACKED):
                continue  # it is read in that form
            read = before.size if before is not None else 0
            index = before.file if before is not None else state.files
            state.files += before is None
            error = FileError(index, one.path, read or None, None, "was deleted or written anew before it was read", one.size - read)
            state.taken[one.path] = ReadFile(one.path, "", 0, one.size, one.first_ns, index, 0, NEVER, error)


def _some(ready: list[Ready]) -> list[Ready]:
    """The first of these files, as many as are read together."""
    size = 0
    for at, one in enumerate(ready):
        size += one.size
        if size > BATCH_BYTES and at:
            return ready[:at]
    return ready
