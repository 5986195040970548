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
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from dissect.errors import CaptureError, UsageError
from dissect.inspector import relate
from dissect.model import ConversationRow, Options
from dissect.spark.pipeline import Job, Progress, Settings, reports_of, texts_of
from dissect.spark.rotation import PACKED, Ready, Rotation, Seen, Taken, digest
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
"""How often a micro-batch is tried whose files are deleted while it reads them, until it only tells that they are."""

GONE_KEPT = 10_000
"""Files that were read and are gone, and may come back: a folder that vanished for a while, or under another name."""


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
    depended: bool = False
    """Packets depended on each other across conversations."""
    place: str = ""
    """The last micro-batch's folder."""
    carry: list[str] = msgspec.field(default_factory=list)
    """Names of the files in it that hold open conversations."""
    written: dict[str, list[str]] = msgspec.field(default_factory=dict)
    """Files by table that the last micro-batch wrote."""
    related: list[ConversationRow] = msgspec.field(default_factory=list)
    secrets: list[str] = msgspec.field(default_factory=list)
    """Captures that hold keys of TLS, as far as they are still there."""


class Batch(msgspec.Struct):
    """What a micro-batch did."""

    number: int
    files: int
    packets: int
    rows: dict[str, int]
    troubles: list[Trouble]
    bugs: list[str]
    """What to tell of bugs of ours."""


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
        try:
            self.state = self._load_state()
            self._publish()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Let others follow into this output."""
        os.close(self._lock)

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
                if not isinstance(error, OSError | CaptureError | _Changed) and not of_spark(error):
                    raise
                # A ring deletes files. What is still there is read, what is not is in `errors` next time.
                gone = [one for one in ready if not _unchanged(one)]
                if not gone:
                    raise
                self._lost(gone)
        raise AssertionError

    def _batch(self, ready: list[Ready], told: list[Trouble], last: bool) -> Batch:
        state = msgspec.structs.replace(self.state, batch=self.state.batch + 1, taken=dict(self.state.taken))
        # A name of its own: tasks of a driver that was killed may still write to what they know.
        state.place = f"batch-{state.batch}-{uuid.uuid4().hex[:8]}"
        folder = self.folder / state.place
        folder.mkdir()
        sizes = [one.size for one in ready]
        found = self.look([one.path for one in ready], sum(sizes))
        state.secrets = found.secrets = [path for path in dict.fromkeys((*state.secrets, *found.secrets)) if Path(path).exists()]
        for one in told:
            state.taken[one.path] = msgspec.structs.replace(state.taken[one.path], trouble=None)
        troubles = [*told, *self._take(state, ready, found)]
        packets = sum(split.number + split.packets - max(split.number, split.after) for split in found.splits)
        count = 0
        if packets or (last and state.carry):
            count = self.settings.parts or min(self.parts(found), sum(split.payload for split in found.splits) // PART_BYTES + 1)
            # A packet dated in the future must not end all that is open.
            until = None if last else max(found.middle_ns)
            state.depended = state.depended or bool(found.dependent)
            self.dissect(found, count, folder, (), self._carry(), until, depended=self.state.depended)
        done = list(receipts(folder).values())
        last_receipt, unrelated = self._finish(state, found, ready, done, count, troubles, folder)
        done.append(last_receipt)
        state.packets += packets
        state.rows = {table: self.state.rows.get(table, 0) + sum(one.rows.get(table, 0) for one in done) for table in TABLES}
        if count:
            state.carry = [name for one in done for name in one.files.get(CarryFile.TABLE, ())]
        elif state.carry:
            # Nothing was read: what is open stays as it is.
            for path in self._carry():
                kept = folder / "files" / CarryFile.TABLE / Path(path).name
                kept.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, kept)
        state.written = {table: [name for one in done for name in one.files.get(table, ())] for table in TABLES}
        self._commit(state)
        rows = {table: sum(one.rows.get(table, 0) for one in done) for table in TABLES}
        paths = {taken.file: path for path, taken in state.taken.items()}
        bugs = texts_of([*reports_of(unrelated), *(report for one in done for report in one.reports)], paths)
        return Batch(state.batch, len(ready), packets, rows, troubles, bugs)

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
            if trouble.fatal and not one.final and trouble.offset is not None:
                held[trouble.file] = trouble
            else:
                told.append(trouble)
            trouble.file = indexes[trouble.file]
        for one in ready:
            if one.taken is not None:
                state.taken.pop(one.taken.path, None)  # it may have another name now
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
                one.superseded,
            )
        return told

    def _finish(
        self, state: State, found: Plan, ready: list[Ready], done: Sequence[Receipt], count: int, troubles: list[Trouble], folder: Path
    ) -> tuple[Receipt, list[str]]:
        """Write what needs all parts; with the receipt what to report of exceptions."""
        last = Writer(folder, count, self.settings.form)
        new = [row for receipt in done for row in receipt.related]
        new.sort(key=lambda row: (row.time_ns, row.conversation))
        failed = relate([*state.related, *new])
        state.related = [*state.related, *new][-RELATED_KEPT:]
        last.put("conversations", new)
        last.put("errors", troubles)
        inputs = []
        for one in ready:
            taken = state.taken[one.path]
            before = one.taken
            # Packed since, it may be smaller.
            size, packets = (0, 0) if before is None else (before.size if before.size <= taken.size else 0, before.packets)
            if before is None or taken.packets > packets:
                inputs.append(Input(taken.file, taken.path, taken.size - size, taken.packets - packets))
        last.put("files", inputs)
        if state.batch == 1:
            for table in TABLES:
                if not any(table in receipt.files for receipt in done) and not last.waits(table):
                    last.empty(table)
        return last.close(), failed

    def _lost(self, gone: Sequence[Ready | Seen]) -> None:
        """Remember files that were deleted or written anew before they were read: a trouble of a file that is never read again."""
        state = self.state
        for one in gone:
            before = one.taken if isinstance(one, Ready) else state.taken.get(one.path)
            if isinstance(one, Seen) and before is not None and before.first_ns != one.first_ns:
                before = None
            if any(Path(one.path + suffix).exists() for suffix in PACKED):
                continue  # it is read in that form
            read = before.size if before is not None else 0
            index = before.file if before is not None else state.files
            state.files += before is None
            trouble = Trouble(index, one.path, read or None, None, "was deleted or written anew before it was read", one.size - read)
            state.taken[one.path] = Taken(index, one.path, "", 0, one.size, one.first_ns, 0, NEVER, trouble)

    # What is there between micro-batches

    def _carry(self) -> list[str]:
        """The files with the open conversations."""
        folder = self.folder / self.state.place / "files" / CarryFile.TABLE
        return [str((folder / name).absolute()) for name in self.state.carry]

    def _load_state(self) -> State:
        path = self.folder / "state.json"
        fresh = State(1, str(Path(self.settings.sources[0]).absolute()), self.settings.form, self.settings.options)
        try:
            state = msgspec.json.decode(path.read_bytes(), type=State)
        except FileNotFoundError:
            for table in TABLES:
                (self.out / table).mkdir(exist_ok=True)
                if any((self.out / table).iterdir()):
                    raise UsageError(f"{path}: is missing, so nobody knows what the tables hold; choose another --out") from None
            return fresh
        except (OSError, msgspec.MsgspecError) as error:
            raise UsageError(f"{path}: cannot be read: {error}") from error
        # Keys may come from elsewhere now
        state.options = msgspec.structs.replace(state.options, keylog=fresh.options.keylog)
        for name in ("v", "folder", "form", "options"):
            if msgspec.to_builtins(getattr(state, name)) != msgspec.to_builtins(getattr(fresh, name)):
                raise UsageError(f"{self.out}: was begun with other options (another {_SAYS[name]}); choose another --out")
        return state

    def _commit(self, state: State) -> None:
        """Make the micro-batch count, and its tables be seen."""
        gone = [one for one in state.taken.values() if one.trouble is None and not Path(one.path).exists()]
        for one in sorted(gone, key=lambda one: one.at_ns)[:-GONE_KEPT]:
            del state.taken[one.path]
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
        folder = self.folder / state.place
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
        with Path(one.path).open("rb") as stream:
            return os.fstat(stream.fileno()).st_size >= one.size and digest(stream.read(one.head_size)) == one.head
    except OSError:
        return False


class _Changed(Exception):
    """A file was written anew while it was read."""
