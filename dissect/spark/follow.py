"""Follows a folder that captures are written to: a micro-batch for the files that became complete, until it is told to end.

What is known between two micro-batches, a driver that was killed included, lies in `.follow` of the output: the state, and that of the
open conversations as rows in Parquet files (`streamdump.spark.flows`). A micro-batch writes its files beside them. What counts is one step
that is whole or not done at all: on a disk the rename of `state.json`; of Delta tables the commit of table `files`, whose transaction is
the name of the state. The state names the batch, the files that it read, and the files that it wrote; these become visible
afterwards, by the next start where this one was killed. Before that step nothing of a batch is seen, after it nothing of it is done again.
"""

from __future__ import annotations

import os
import time
import uuid
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec

from ..capture.files import PACKED
from ..errors import CaptureError, UsageError
from ..model import ConversationRow, Options
from . import storage
from .pipeline import Job, PipelineSettings, Points, Progress, lock, texts_of
from .rotation import ReadFile, Ready, Rotation, SeenFile, same_file
from .session import of_spark
from .splits import NEVER, LastPacket, Plan, Trouble, ends_of, first_packet, last_packets
from .storage import Disk, Folder
from .tables import TABLES, Input, tables_with
from .tasks import Work, flows_carried
from .write import CARRIED, Receipt, Target, Written, files_of, receipts, suspected, twice

if TYPE_CHECKING:
    from .delta import Delta

FOLDER = ".follow"

APP = "streamdump.follow"
CLAIM_BITS = 24
"""The transaction of a micro-batch of Delta tables is its number, and the claim of its writer in the last bits."""

BATCH_BYTES = 1 << 30
"""Files of so many bytes together are one micro-batch; a larger one is one by itself."""

RELATED_KEPT = 10_000
"""Conversations that later ones may still be related to."""

ATTEMPTS = 3
"""How often a micro-batch is tried whose files are deleted while it reads them, until it only tells that they are."""

GONE_KEPT = 10_000
"""Files that were read and are gone, and may come back: a folder that vanished for a while, or under another name."""


COMPACTED = 16
"""After so many micro-batches small files are put together, where the form can do that."""

FORMAT = 5
"""Changes when an older state could not be taken up."""


class PointsOf(msgspec.Struct):
    """Where files were captured: for each first index of a row of files their point."""

    begin: list[int] = []
    point: list[str] = []

    def get(self, file: int, /) -> str | None:
        """Of a file."""
        at = bisect_right(self.begin, file) - 1
        return self.point[at] if at >= 0 else None

    def add(self, file: int, point: str) -> None:
        """Of a new file."""
        if not self.point or self.point[-1] != point:
            self.begin.append(file)
            self.point.append(point)


class FollowState(msgspec.Struct):
    """What a driver knows that takes up the work; `v` changes when an older one could not."""

    v: int
    folder: str
    form: str
    options: Options
    separate: bool = False
    point: str | None = None
    batch: int = 0
    """Micro-batches done."""
    taken: dict[str, ReadFile] = msgspec.field(default_factory=dict)
    files: int = 0
    """Files read so far: the index of the next one."""
    packets: int = 0
    rows: dict[str, int] = msgspec.field(default_factory=dict)
    place: str = ""
    """The last micro-batch's folder."""
    carry: list[str] = msgspec.field(default_factory=list)
    """The files that hold open conversations: folder of their micro-batch, and name."""
    written: dict[str, list[Written]] = msgspec.field(default_factory=dict)
    """Files by table that the last micro-batch wrote."""
    points: PointsOf = msgspec.field(default_factory=PointsOf)
    networks: list[str] = msgspec.field(default_factory=list)
    """The points whose captures are kept separate, in the order of their numbers."""
    related: list[ConversationRow] = msgspec.field(default_factory=list)
    secrets: list[str] = msgspec.field(default_factory=list)
    """Captures that hold keys of TLS, as far as they are still there."""
    first_ns: int | None = None
    """When the first packet of the first captures came."""
    last: dict[int, LastPacket] = msgspec.field(default_factory=dict)
    """By network the last packet of all captures."""


class Batch(msgspec.Struct):
    """What a micro-batch did."""

    number: int
    files: int
    packets: int
    rows: dict[str, int]
    troubles: list[Trouble]
    bugs: list[str]
    """What to tell of bugs of ours."""
    suspected: ConversationRow | None = None
    """The first conversation that turned out to hold a login of another protocol than the one that it was asked to be read as."""


class Follow(Job):
    """Reads the captures of a folder as they become complete, and adds to the tables in `out`."""

    def __init__(self, settings: PipelineSettings, out: str, rotation: Rotation, show: Callable[[Progress], None] = lambda _: None) -> None:
        super().__init__(settings, show)
        self.out = storage.folder(out)
        self.rotation = rotation
        self.folder = self.out.at(FOLDER)
        self._delta: Delta | None = None
        if settings.form == "delta":
            from .delta import Delta, check

            check()
            self._delta = Delta(self.out, settings.fields)
        elif not isinstance(self.out, Disk):
            raise UsageError(f"{out}: to an object store --follow writes --format delta, since renaming is no commit there")
        self._lock = _locked(self.folder)
        try:
            self.state = self._load_state()
            self.points = Points(settings, self.state.networks)
            self._publish(self._delta.committed(APP) if self._delta is not None else 0)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Let others follow into this output."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

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
                return self._batch(ready, [one.trouble for one in ended if one.trouble is not None], last)
            except Exception as error:
                if not isinstance(error, OSError | CaptureError) and not of_spark(error):
                    raise
                # A ring deletes files. What is still there is read, what is not is in `errors` next time.
                gone = [one for one in ready if not same_file(one.path, one)]
                if not gone:
                    raise
                self._lost(gone)
        raise AssertionError

    def _batch(self, ready: list[Ready], told: list[Trouble], last: bool) -> Batch:
        before = self.state
        state = msgspec.structs.replace(before, batch=before.batch + 1, taken=dict(before.taken))
        state.points = msgspec.structs.replace(before.points, begin=[*before.points.begin], point=[*before.points.point])
        # A name of its own: tasks of a driver that was killed may still write to what they know.
        run = uuid.uuid4().hex[:8]
        state.place = f"batch-{state.batch}-{run}"
        folder = self.folder.at(state.place)
        target = self.settings.target(folder, self.out, f"{run}-")
        copies = storage.folder(self.cluster.scratch).at(state.place) if self.cluster.scratch else folder.at("unpacked")
        sizes = [one.size for one in ready]
        found = self.look([one.path for one in ready], sum(sizes), copies)
        secrets = dict.fromkeys((*state.secrets, *found.secrets))
        state.secrets = found.secrets = [name for name in secrets if storage.status(name) is not None]
        for one in told:
            state.taken[one.path] = msgspec.structs.replace(state.taken[one.path], trouble=None)
        troubles = [*told, *self._take(state, ready, found)]
        packets = sum(split.number + split.packets - max(split.number, split.after) for split in found.splits)
        state.last = last_packets(found.splits, state.last)
        target.first_ns = state.first_ns = first_packet(found.splits) if state.first_ns is None else state.first_ns
        parts = 0
        if packets or (last and state.carry):
            carried, depend = flows_carried(self._carry())
            made, count = self.tasks(found, carried)
            # A packet dated in the future must not end all that is open.
            until = None if last else max(found.middle_ns)
            paths = {split.file: split.path for split in found.splits}
            ends_ns = ends_of(state.last, self._networks(state)) if last else {}
            work = Work(target, self.options(found), paths, state.points, until, count, not last, ends_ns)
            self.dissect(work, made, found.bytes, (), depend or bool(found.dependent))
            parts = len(made) + count
        copies.remove()
        done = list(receipts(folder).values())
        self._finish(state, found, ready, done, parts, troubles, target)
        state.packets += packets
        rows = {table: sum(one.rows.get(table, 0) for one in done) for table in TABLES}
        state.rows = {table: before.rows.get(table, 0) + rows[table] for table in TABLES}
        if parts:
            state.carry = [f"{state.place}/{one.name}" for receipt in done for one in receipt.files.get(CARRIED, ())]
        state.networks = self.points.known
        state.written = {table: [] for table in TABLES}
        for table, file in files_of(done):
            state.written[table].append(file)
        self._commit(state)
        paths = {taken.file: path for path, taken in state.taken.items()}
        return Batch(state.batch, len(ready), packets, rows, troubles, texts_of(done, paths), suspected(done))

    def _networks(self, state: FollowState) -> Iterator[tuple[int, int]]:
        """All files with their networks, where captures are kept separate."""
        for file in range(state.files if state.separate else 0):
            point = state.points.get(file)
            if point is not None:
                yield file, self.points.network(point)

    def _take(self, state: FollowState, ready: list[Ready], found: Plan) -> list[Trouble]:
        """Give files their index of this run, leave out what was read before, and note what is read now; the troubles to tell."""
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
        told, held = [], {}
        for trouble in found.troubles:
            one = ready[trouble.file]
            if trouble.fatal and not one.final and trouble.offset is not None:
                held[trouble.file] = trouble
            else:
                told.append(trouble)
            trouble.file = indexes[trouble.file]
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
                found.latest_ns[at],
                held.get(at),
                time.time_ns(),
                one.superseded,
            )
        return told

    def _finish(
        self,
        state: FollowState,
        found: Plan,
        ready: list[Ready],
        done: list[Receipt],
        part: int,
        troubles: list[Trouble],
        target: Target,
    ) -> None:
        """Write what needs all parts."""
        inputs = []
        for at, one in enumerate(ready):
            taken = state.taken[one.path]
            before = one.taken
            # Packed since, it may be smaller.
            size, packets = (0, 0) if before is None else (before.size if before.size <= taken.size else 0, before.packets)
            if before is None or taken.packets > packets:
                more = found.heads[at], found.sizes[at]
                inputs.append(Input(taken.file, taken.path, taken.size - size, taken.packets - packets, self.points.of(one.path), *more))
        troubles += twice(done, {state.taken[one.path].file: one.path for one in ready})
        complete = state.batch == 1 and self._delta is None
        related = self.gather(target, part, state.points, done, state.related, 1).related
        state.related = [*state.related, *related][-RELATED_KEPT:]
        self.last_part(target, state.points, done, troubles, inputs, complete=complete)

    def _lost(self, gone: Sequence[Ready | SeenFile]) -> None:
        """Remember files that were deleted or written anew before they were read: a trouble of a file that is never read again."""
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
            trouble = Trouble(index, one.path, read or None, None, "was deleted or written anew before it was read", one.size - read)
            state.taken[one.path] = ReadFile(one.path, "", 0, one.size, one.first_ns, index, 0, NEVER, trouble)

    # What is there between micro-batches

    def _carry(self) -> list[str]:
        """The files with the open conversations."""
        pairs = [one.split("/") for one in self.state.carry]
        return [self.folder.at(place, "files", CARRIED, name).name for place, name in pairs]

    def _load_state(self) -> FollowState:
        settings = self.settings
        fresh = FollowState(FORMAT, storage.normal(settings.sources[0]), settings.form, settings.options, settings.separate, settings.point)
        place = self.folder.at("state.json")
        if self._delta is not None:
            self._delta.begin()
            place = self.folder.at(f"state-{self._delta.committed(APP)}.json")
        try:
            state = msgspec.json.decode(place.read(), type=FollowState)
        except FileNotFoundError:
            self._check_empty(place)
            return fresh
        except (OSError, msgspec.MsgspecError) as error:
            raise UsageError(f"{place}: cannot be read: {error}") from error
        # Keys may come from elsewhere now
        state.options = replace(state.options, keylog=fresh.options.keylog)
        for name, says in _SAYS.items():
            if msgspec.to_builtins(getattr(state, name)) != msgspec.to_builtins(getattr(fresh, name)):
                raise UsageError(f"{self.out}: was started with other options (another {says}); choose another --out")
        return state

    def _check_empty(self, place: Folder) -> None:
        """Raises `UsageError` where the tables have rows that no state tells of."""
        if self._delta is not None:
            rows = self._delta.committed(APP) or self._delta.files("files")
        else:
            for table in tables_with(self.settings.fields):
                self.out.at(table).make()
            rows = [name for table in TABLES for name in self.out.at(table).names()]
        if rows:
            raise UsageError(f"{place}: is missing, so the contents of the tables are unknown; choose another --out")

    def _commit(self, state: FollowState) -> None:
        """Make the micro-batch count, and its tables be seen."""
        gone = [one for one in state.taken.values() if one.trouble is None and not self.rotation.there(one.path)]
        for one in sorted(gone, key=lambda one: one.at_ns)[:-GONE_KEPT]:
            del state.taken[one.path]
        data = msgspec.json.encode(state)
        if self._delta is None:
            self.folder.at("state.json").write(data, durable=True)
        else:
            # Whoever has a later claim writes another state of this batch; which one counts the commit says.
            version = state.batch << CLAIM_BITS | self._delta.claim
            self.folder.at(f"state-{version}.json").write(data, durable=True)
        self.state = state
        self._publish(state.batch << CLAIM_BITS | self._delta.claim if self._delta is not None else 0)
        if self._delta is not None and state.batch % COMPACTED == 0:
            self._delta.compact()

    def _publish(self, version: int) -> None:
        """Let what the last micro-batch wrote be seen, and remove what no one needs any more."""
        state = self.state
        if self._delta is not None:
            self._delta.commit(APP, version, state.written)
        else:
            for table, files in state.written.items():
                for one in files:
                    *folders, name = one.name.split("/")
                    made = self.folder.at(state.place, "files", table, *folders, name)
                    if made.exists():
                        move(made, self.out.at(table, *folders, f"batch-{state.batch:07d}-{name}"))
        kept = {state.place, *(one.partition("/")[0] for one in state.carry), f"state-{version}.json"}
        for name in self.folder.names():
            if name.startswith(("batch-", "state-")) and name not in kept:
                self.folder.at(name).remove()


def move(made: Folder, to: Folder) -> None:
    """Let a file be seen."""
    made.move(to)


_SAYS = {
    "v": "version of streamdump",
    "folder": "folder",
    "form": "--format",
    "options": "way to decode",
    "separate": "--separate-points",
    "point": "--point",
}


def _locked(folder: Folder) -> int | None:
    """Keep others from following into this output; the lock goes with the process. In an object store the claim does that."""
    if isinstance(folder, Disk):
        try:
            # What is carried has bytes as they were captured, secrets too, next to tables that are to be shared.
            folder.path.parent.mkdir(parents=True, exist_ok=True)
            folder.path.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise UsageError(f"{folder.path.parent}: cannot be written: {storage.why(error)}") from error
    return lock(folder, "another streamdump follows into it")


def _some(ready: list[Ready]) -> list[Ready]:
    """The first of these files, as many as are read together."""
    size = 0
    for at, one in enumerate(ready):
        size += one.size
        if size > BATCH_BYTES and at:
            return ready[:at]
    return ready
