"""Follows a folder that captures are written to: a micro-batch for the files that became complete, until it is stopped.

The state between two micro-batches, which a killed driver leaves too, is in `.follow` of the output: the state, and that of the
open conversations as rows in Parquet files (`streamdump.spark.flows`).
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import replace
from itertools import accumulate

from msgspec import structs

from ..errors import CaptureError, UsageError
from . import storage
from .pipeline import FORMAT, Batch, Pipeline, PipelineSettings, Progress, State, likeness
from .rotation import Look, ReadFile, Rotation, SeenFile, same_file
from .session import of_spark
from .sink import sink_of
from .splits import FileError, Plan
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
        self.sink = sink_of(settings.form, self.folder, self.out, settings.fields)
        # The carried state has bytes as they were captured, secrets too, next to tables that are to be shared
        self.sink.lock("another streamdump follows into it", 0o700)
        try:
            self.state = self._load()
        except BaseException:
            self.close()
            raise

    def _load(self) -> State:
        settings = self.settings
        # Keys may come from elsewhere later
        like = likeness(
            {
                "folder": storage.normal(settings.sources[0]),
                "--format": settings.form,
                "way to decode": replace(settings.options, keylog=()),
                "--separate-points": settings.separate,
                "--point": settings.point,
            }
        )
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
            # One that was missed has no other error
            ended = list({one.path: one for one in (*found.ended, *map(self._lost, found.missed))}.values())
            ready = _some(found.ready) if attempt < ATTEMPTS else []
            last = end and len(ready) == len(found.ready)
            if not ready and not ended and not (last and self.state.carry):
                return None
            try:
                return self._batch(found._replace(ready=ready, ended=ended), last)
            except Exception as error:
                # A ring deletes files: what is still there is read, what is not is missed by the next look
                expected = isinstance(error, OSError | CaptureError) or of_spark(error)
                if not expected or all(same_file(one.path, one) for one in ready):
                    raise
        raise AssertionError

    def _batch(self, found: Look, last: bool) -> Batch:
        state, ready = self.state.next(), found.ready
        copies = storage.folder(self.cluster.scratch or self.folder.name).at("unpacked")
        plan = self.look([one.path for one in ready], sum(one.size for one in ready), copies)
        errors = [one.error for one in found.ended if one.error is not None]
        for old in found.ended:
            state.taken[old.path] = structs.replace(old, error=None)
        again = [(one, state.taken.pop(one.read.path, one.read)) for one in (*found.renamed, *ready) if one.read is not None]
        for one, old in again:
            state.taken[one.path] = structs.replace(old, path=one.path, head=one.head, head_size=one.head_size, size=one.size)
        inputs = self._take(state, ready, plan, errors)
        paths = {taken.file: path for path, taken in state.taken.items()}
        gone = [one for one in state.taken.values() if one.error is None and not self.rotation.there(one.path)]
        for old in sorted(gone, key=lambda one: one.at_ns)[:-GONE_KEPT]:
            del state.taken[old.path]
        plan.errors = errors
        batch = self.unit(state, plan, inputs, paths, last=last)
        copies.remove()
        return structs.replace(batch, files=len(ready))

    def _take(self, state: State, ready: list[SeenFile], plan: Plan, errors: list[FileError]) -> list[Input]:
        """Note what is read now, and leave out of the plan what was read before; return the rows of `files`, and add to `errors`.

        The plan counts the files that are ready, and gets the indexes of this run.
        """
        files = []
        for one, planned in zip(ready, plan.files.values(), strict=True):
            old = one.read
            if old is None:
                old = ReadFile(one.path, "", 0, 0, None, state.files)
                state.points.add(old.file, self.settings.point_of(one.path))
                state.files += 1
            # More may have come since it was looked at
            size = one.size if planned.packed or planned.place != one.path else planned.size or 0
            taken = state.taken[one.path] = ReadFile(
                one.path,
                one.head,
                one.head_size,
                size,
                one.first_ns,
                old.file,
                at_ns=time.time_ns(),
                superseded=one.superseded,
            )
            files.append((one, old, taken))
        for split in plan.splits:
            _, old, taken = files[split.file]
            taken.packets, taken.latest_ns = split.number + split.packets, split.end_ns[0]
            split.file, split.after, split.latest_ns = taken.file, old.packets, max(split.latest_ns, old.latest_ns)
        plan.splits = [split for split in plan.splits if split.number + split.packets > split.after]
        for error in plan.errors:
            one, _, taken = files[error.file]
            error.file = taken.file
            if error.fatal and not one.final and error.offset is not None:
                taken.error = error
            else:
                errors.append(error)
        inputs = []
        for (one, old, taken), planned in zip(files, plan.files.values(), strict=True):
            if one.read is None or taken.packets > old.packets:
                # Packed since, it may be smaller
                size = taken.size - (old.size if old.size <= taken.size else 0)
                point = self.settings.point_of(one.path)
                inputs.append(Input(taken.file, one.path, size, taken.packets - old.packets, point, planned.head, planned.size))
        return inputs

    def _lost(self, one: SeenFile) -> ReadFile:
        """Remember a file that was deleted or replaced before it was read: the error of a file that is never read again."""
        state, old = self.state, self.state.taken.get(one.path)
        if old is None or old.first_ns != one.first_ns:
            old = ReadFile(one.path, "", 0, 0, None, state.files)
            state.files += 1
        error = FileError(old.file, one.path, old.size or None, None, "was deleted or written anew before it was read", one.size - old.size)
        lost = state.taken[one.path] = ReadFile(one.path, "", 0, one.size, one.first_ns, old.file, error=error)
        return lost


def _some(ready: list[SeenFile]) -> list[SeenFile]:
    """The first of these files, as many as are read together."""
    sizes = list(accumulate(one.size for one in ready))
    return ready[: max(bisect_right(sizes, BATCH_BYTES), 1)]
