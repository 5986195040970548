"""Follows a folder that captures are written to: a micro-batch for the files that became complete, until it is stopped.

The state between two micro-batches, which a killed driver leaves too, is in `.follow` of the output: the state, and that of the
open conversations as rows in Parquet files (`streamdump.spark.flows`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import replace
from itertools import accumulate

from msgspec import structs

from ..errors import CaptureError, refuse
from . import storage
from .pipeline import Batch, Pipeline, PipelineSettings, Progress, State, likeness
from .rotation import KnownFile, Read, Rotation, same_file
from .session import of_spark
from .sink import sink_of
from .splits import Plan
from .tables import Input

FOLDER = ".follow"

BATCH_BYTES = 1 << 30
"""Maximum bytes of the files of one micro-batch; a larger file is one by itself."""


class Follow(Pipeline):
    """Reads the captures of a folder as they become complete, and adds to the tables in `out`."""

    def __init__(self, settings: PipelineSettings, out: str, rotation: Rotation, show: Callable[[Progress], None] = lambda _: None) -> None:
        super().__init__(settings, out, lambda place: place.at(FOLDER), show)
        self.rotation = rotation
        refuse(
            (
                settings.form != "delta" and self.out.path is None,
                f"{out}: to an object store --follow writes --format delta, since renaming is no commit there",
            )
        )
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
            refuse((self.sink.rows, f"{self.sink.committed}: is missing, so the contents of the tables are unknown; choose another --out"))
            self.sink.begin()
            return State(like)
        for what, value in like.items():
            refuse((state.like.get(what) != value, f"{self.out}: was started with other options (another {what}); choose another --out"))
        return state

    def step(self, end: bool = False) -> Batch | None:
        """A micro-batch of what can be read now, None where there is nothing to do. `end`: nothing will be written any more, and the
        conversations that are open end with the last file."""
        found = self.rotation.look(self.state, end)
        ready = _some(found)
        last = end and len(ready) == len(found)
        if not ready and not self.state.errors and not (last and self.state.carry):
            return None
        try:
            return self._batch(ready, last)
        except Exception as error:
            expected = isinstance(error, OSError | CaptureError) or of_spark(error)
            if not expected or all(storage.status(one.path) == one.status or same_file(one.path, one) for one in ready):
                raise
        # A ring deletes files: what is gone is reported first, what is still there is read by the next one
        self.rotation.look(self.state, end)
        return self._batch([], last=False)

    def _batch(self, ready: list[KnownFile], last: bool) -> Batch:
        state = self.state.next()
        copies = storage.folder(self.cluster.scratch or self.folder.name).at("unpacked")
        plan = self.look([one.path for one in ready], sum(one.status.size for one in ready), copies)
        inputs = self._take(state, ready, plan)
        paths = {one.read.file: one.path for one in (*state.gone, *state.taken.values()) if one.read is not None}
        batch = self.unit(state, plan, inputs, paths, last=last)
        copies.remove()
        return structs.replace(batch, files=len(ready))

    def _take(self, state: State, ready: list[KnownFile], plan: Plan) -> list[Input]:
        """Note what is read now, and leave out of the plan what was read before; return the rows of `files`.

        The plan counts the files that are ready, and gets the indexes of this run, and the errors that are reported now.
        """
        reads, rows = [], []
        for one, planned in zip(ready, plan.files.values(), strict=True):
            before, point = one.read, self.settings.point_of(one.path)
            if before is None:
                before = Read(state.files)
                state.points.add(before.file, point)
                state.files += 1
            # More may have come since it was looked at
            size = one.status.size if planned.packed or planned.place != one.path else planned.size
            reads.append(structs.replace(before, size=size, error=None))
            rows.append(Input(before.file, one.path, size - before.size, 0, point, planned.head, planned.size))
            state.taken[one.path] = structs.replace(one, read=reads[-1])
        for split in plan.splits:
            read, row = reads[split.file], rows[split.file]
            split.file, split.after = read.file, read.packets
            row.packets = max(split.number + split.packets - split.after, 0)
        plan.splits = [split for split in plan.splits if split.number + split.packets > split.after]
        found, plan.errors, state.errors = plan.errors, [*state.errors], []
        for error in found:
            read = reads[error.file]
            error.file = read.file
            if error.fatal and error.offset is not None:
                read.error = error
            else:
                plan.errors.append(error)
        for read, row in zip(reads, rows, strict=True):
            read.packets += row.packets
        return [row for one, row in zip(ready, rows, strict=True) if one.read is None or row.packets]


def _some(ready: list[KnownFile]) -> list[KnownFile]:
    """The first of these files, as many as are read together."""
    sizes = list(accumulate(one.status.size for one in ready))
    return ready[: max(bisect_right(sizes, BATCH_BYTES), 1)]
