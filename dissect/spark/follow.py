"""Follows a folder that captures are written to: a micro-batch for the files that became complete, until it is told to end.

What is known between two micro-batches, a driver that was killed included, lies in `.follow` of the output: `state.json`, and the state
of the open conversations as rows in Parquet files (`dissect.spark.flows`). A micro-batch writes its files beside them. What counts is one
rename, that of `state.json`, which then names the batch, the files that it read, and the files that it wrote; these are moved to the
tables afterwards, by the next start where this one was killed. Before that rename nothing of a batch is seen, after it nothing of it is
done again.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from dissect.errors import CaptureError, UsageError
from dissect.inspector import relate
from dissect.model import ConversationRow, Options
from dissect.spark.pipeline import Job, Progress, Settings
from dissect.spark.rotation import Ready, Rotation, Taken
from dissect.spark.session import Session, of_spark
from dissect.spark.splits import NEVER, Plan, Trouble
from dissect.spark.tables import TABLES, Input
from dissect.spark.write import CarryFile, Receipt, Writer, receipts

FOLDER = ".follow"

BATCH_BYTES = 1 << 30
"""Files of so many bytes together are one micro-batch; a larger one is one by itself."""

PART_BYTES = 32 << 20
"""Payload of a part, about: a micro-batch should be quick, but a file for each table and part is left behind."""

RELATED_KEPT = 10_000
"""Conversations that later ones may still be related to."""

ATTEMPTS = 3
"""How often a micro-batch is tried whose files are deleted while it reads them."""


class State(msgspec.Struct):
    """What a driver knows that takes up the work; `v` changes when an older one could not."""

    v: int
    folder: str
    form: str
    options: Options
    batch: int = 0
    """Micro-batches done."""
    taken: dict[str, Taken] = msgspec.field(default_factory=dict)
    files: int = 0
    """Files read so far: the index of the next one."""
    packets: int = 0
    rows: dict[str, int] = msgspec.field(default_factory=dict)
    latest_ns: int = NEVER
    carry: list[str] = msgspec.field(default_factory=list)
    """Names of the files that hold open conversations, in the last micro-batch's folder."""
    written: dict[str, list[str]] = msgspec.field(default_factory=dict)
    """Files by table that the last micro-batch wrote."""
    related: list[ConversationRow] = msgspec.field(default_factory=list)


class Batch(msgspec.Struct):
    """What a micro-batch did."""

    number: int
    files: int
    packets: int
    rows: dict[str, int]
    troubles: list[Trouble]


class Follow(Job):
    """Reads the captures of a folder as they become complete, and adds to the tables in `out`."""

    def __init__(
        self,
        session: Session,
        settings: Settings,
        out: Path,
        rotation: Rotation,
        show: Callable[[Progress], None] = lambda _: None,
    ) -> None:
        super().__init__(session, settings, show)
        self.out = out
        self.rotation = rotation
        self.folder = out / FOLDER
        self._lock = _lock(self.folder)
        self.state = self._load_state()
        self._publish()

    def close(self) -> None:
        """Let others follow into this output."""
        os.close(self._lock)

    def step(self, end: bool = False) -> Batch | None:
        """A micro-batch of what can be read now, None where there is nothing to do. `end`: nothing will be written any more, and the
        conversations that are open end with the last file."""
        for attempt in range(ATTEMPTS):
            found = self.rotation.look(self.state.taken, end)
            ready = _some(found)
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
                gone = [one for one in ready if not _unchanged(one)]
                if not gone or attempt + 1 == ATTEMPTS:
                    raise
                self._lost(gone)
        raise AssertionError

    def _batch(self, ready: list[Ready], told: list[Trouble], last: bool) -> Batch:
        state = msgspec.structs.replace(self.state, batch=self.state.batch + 1, taken=dict(self.state.taken))
        folder = self._batch_folder(state.batch)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        sizes = [one.size for one in ready]
        found = self.look([one.path for one in ready], sum(sizes))
        for one in told:
            state.taken[one.path] = msgspec.structs.replace(state.taken[one.path], trouble=None)
        troubles = [*told, *self._take(state, ready, found)]
        state.latest_ns = max([state.latest_ns, *found.latest_ns])
        packets = sum(split.number + split.packets - max(split.number, split.after) for split in found.splits)
        count = 0
        if packets or (last and state.carry):
            count = self.settings.parts or min(self.parts(found), sum(split.payload for split in found.splits) // PART_BYTES + 1)
            until = None if last else state.latest_ns
            self.dissect(found, count, folder, (), self._carry(), until)
        done = list(receipts(folder).values())
        done.append(self._finish(state, found, ready, done, count, troubles, folder))
        state.packets += packets
        state.rows = {table: self.state.rows.get(table, 0) + sum(one.rows.get(table, 0) for one in done) for table in TABLES}
        if count:
            state.carry = [name for one in done for name in one.files.get(CarryFile.TABLE, ())]
        elif state.carry:
            # Nothing was read: what is open stays as it is.
            (folder / "files").mkdir(exist_ok=True)
            shutil.copytree(
                self._batch_folder(self.state.batch) / "files" / CarryFile.TABLE, folder / "files" / CarryFile.TABLE, copy_function=os.link
            )
        state.written = {table: [name for one in done for name in one.files.get(table, ())] for table in TABLES}
        self._commit(state)
        rows = {table: sum(one.rows.get(table, 0) for one in done) for table in TABLES}
        return Batch(state.batch, len(ready), packets, rows, troubles)

    def _take(self, state: State, ready: list[Ready], found: Plan) -> list[Trouble]:
        """Give files their index of this run, leave out what was read before, and note what is read now; the troubles to tell."""
        indexes = []
        for one in ready:
            indexes.append(state.files if one.taken is None else one.taken.file)
            state.files += one.taken is None
        size = [one.size for one in ready]
        packets = [0] * len(ready)
        for split in found.splits:
            at = split.file
            before = ready[at].taken
            split.file = indexes[at]
            packets[at] = split.number + split.packets
            if split.stop is not None:
                size[at] = split.stop
            if before is not None:
                split.after = before.packets
                split.latest_ns = max(split.latest_ns, before.latest_ns)
        found.splits = [split for split in found.splits if split.number + split.packets > split.after]
        told, held = [], {}
        for trouble in found.troubles:
            one = ready[trouble.file]
            if trouble.fatal and not one.superseded and packets[trouble.file]:
                held[trouble.file] = trouble
            else:
                told.append(trouble)
            trouble.file = indexes[trouble.file]
        for at, one in enumerate(ready):
            state.taken[one.path] = Taken(
                indexes[at],
                one.path,
                one.head,
                one.head_size,
                size[at],
                one.first_ns,
                packets[at],
                found.latest_ns[at],
                held.get(at),
                time.time_ns(),
            )
        return told

    def _finish(
        self, state: State, found: Plan, ready: list[Ready], done: Sequence[Receipt], count: int, troubles: list[Trouble], folder: Path
    ) -> Receipt:
        """Write what needs all parts."""
        last = Writer(folder, count, self.settings.form)
        new = [row for receipt in done for row in receipt.related]
        new.sort(key=lambda row: (row.time_ns, row.conversation))
        relate([*state.related, *new])
        state.related = [*state.related, *new][-RELATED_KEPT:]
        last.put("conversations", new)
        last.put("errors", troubles)
        inputs = []
        for one in ready:
            taken = state.taken[one.path]
            before = one.taken
            size, packets = (0, 0) if before is None else (before.size, before.packets)
            inputs.append(Input(taken.file, taken.path, taken.size - size, taken.packets - packets))
        last.put("files", inputs)
        if state.batch == 1:
            for table in TABLES:
                if not any(table in receipt.files for receipt in done) and not last.waits(table):
                    last.empty(table)
        return last.close()

    def _lost(self, gone: list[Ready]) -> None:
        """Remember files that were deleted or written anew before they were read: a trouble of a file that is never read again."""
        state = self.state
        for one in gone:
            read = one.taken.size if one.taken is not None else 0
            index = one.taken.file if one.taken is not None else state.files
            state.files += one.taken is None
            trouble = Trouble(index, one.path, read or None, None, "was deleted or written anew before it was read", one.size - read)
            state.taken[one.path] = Taken(index, one.path, "", 0, 0, None, 0, NEVER, trouble)

    # What is there between micro-batches

    def _batch_folder(self, number: int) -> Path:
        return self.folder / f"batch-{number}"

    def _carry(self) -> list[str]:
        """The files with the open conversations."""
        folder = self._batch_folder(self.state.batch) / "files" / CarryFile.TABLE
        return [str((folder / name).absolute()) for name in self.state.carry]

    def _load_state(self) -> State:
        path = self.folder / "state.json"
        fresh = State(1, str(Path(self.settings.sources[0]).absolute()), self.settings.form, self.settings.options)
        try:
            state = msgspec.json.decode(path.read_bytes(), type=State)
        except FileNotFoundError:
            for table in TABLES:
                (self.out / table).mkdir(exist_ok=True)
            return fresh
        except (OSError, msgspec.MsgspecError) as error:
            raise UsageError(f"{path}: cannot be read: {error}") from error
        for name in ("v", "folder", "form", "options"):
            if msgspec.to_builtins(getattr(state, name)) != msgspec.to_builtins(getattr(fresh, name)):
                raise UsageError(f"{self.out}: was begun with other options (another {_SAYS[name]}); choose another --out")
        return state

    def _commit(self, state: State) -> None:
        """Make the micro-batch count, and its tables be seen."""
        there = {one.path for one in state.taken.values() if Path(one.path).exists()}
        state.taken = {path: one for path, one in state.taken.items() if path in there or one.trouble is not None}
        path = self.folder / "state.json"
        written = path.with_suffix(".new")
        with written.open("wb") as stream:
            stream.write(msgspec.json.encode(state))
            stream.flush()
            os.fsync(stream.fileno())
        written.rename(path)
        self.state = state
        self._publish()

    def _publish(self) -> None:
        """Move what the last micro-batch wrote to the tables, and remove what no one needs any more."""
        state = self.state
        folder = self._batch_folder(state.batch)
        for table, names in state.written.items():
            for name in names:
                made = folder / "files" / table / name
                if made.exists():
                    move(made, self.out / table / f"batch-{state.batch:07d}-{name}")
        for other in self.folder.glob("batch-*"):
            if other != folder:
                shutil.rmtree(other, ignore_errors=True)


def move(path: Path, to: Path) -> None:
    """Let a file be seen."""
    path.rename(to)


_SAYS = {"v": "version of streamdump", "folder": "folder", "form": "--format", "options": "way to decode"}


def _lock(folder: Path) -> int:
    """Keep others from following into this output; the lock goes with the process."""
    try:
        # What is carried has bytes as they were captured, secrets too, next to tables that are to be shared.
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        handle = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise UsageError(f"{folder.parent}: cannot be written: {(error.strerror or str(error)).lower()}") from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(handle)
        raise UsageError(f"{folder.parent}: another streamdump follows into it") from error
    return handle


def _some(ready: list[Ready]) -> list[Ready]:
    """The first of these files, as many as are read together."""
    size = 0
    for at, one in enumerate(ready):
        size += one.size
        if size > BATCH_BYTES and at:
            return ready[:at]
    return ready


def _unchanged(one: Ready) -> bool:
    """Whether a file still is what was looked at, or has grown."""
    try:
        return Path(one.path).stat().st_size >= one.size and _digest(one) == one.head
    except OSError:
        return False


def _digest(one: Ready) -> str:
    from dissect.spark.rotation import digest

    with Path(one.path).open("rb") as stream:
        return digest(stream.read(one.head_size))
