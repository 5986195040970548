"""One run of the bulk pipeline: captures in, tables out. Prints nothing."""

from __future__ import annotations

import fcntl
import os
import re
import uuid
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from ..errors import UsageError
from ..latency.groups import LatencyGroup
from ..model import ConversationRow, Options
from . import PARTS, storage, tasks
from .already_read import Captures
from .flows import PointOf
from .keys import NETWORKS
from .session import SparkTasks, Watch
from .splits import (
    HEAD,
    TARGET,
    Copy,
    Plan,
    Trouble,
    each,
    ends_of,
    expand,
    first_packet,
    last_packets,
    plan,
    stamps,
    unpack,
)
from .storage import Disk, Folder
from .tables import BY_DAY, TABLES, Input, tables_with
from .tasks import TaskInput, Work
from .together import BUCKET, Together, by_server, findings_of, frames, slowest
from .write import FRAMES, PartWriter, Receipt, Target, commit, files_of, forget_unnamed, receipts, suspected, twice

if TYPE_CHECKING:
    from .delta import Delta

LOCALLY = 64 << 20
"""Captures of so few bytes together are looked at right here instead of by Spark."""

SPREAD = 16
"""So many tasks a core look at captures at the most: a task takes 30 ms whatever it does, which small captures do not."""

UNPACKED = 8
"""So many times its size a packed capture has, about."""

LEAST_RANGE = 16 << 20
"""Captures of fewer bytes together are one task, which costs least; larger ones keep all processors busy."""

PART_BYTES = 128 << 20
LEAST_PART_BYTES = 8 << 20
"""Payload of a part, about: one for all where there is little, more of them where there is much."""


class PipelineSettings(msgspec.Struct):
    """What a run does; a run that goes on where another ended has the same."""

    sources: list[str]
    form: str = "parquet"
    split: int = TARGET
    parts: int | None = None
    options: Options = msgspec.field(default_factory=Options)
    separate: bool = False
    """Captures of different points are different networks, though their addresses may be alike."""
    point: str | None = None
    """A regular expression that finds in a file's name where it was captured; None: the folder tells."""
    append: bool = False
    where: str | None = None
    """What messages and exchanges have to fit; all where there is none."""
    findings: bool = False
    """Whether rules look for what went wrong."""
    entries: bool = False
    """Whether the user messages that messages carry are written, too."""
    fields: str = "json"
    """How the fields of messages are written, of `tables.FIELDS`."""
    by: tuple[str, ...] = ()
    """Columns by whose values files of Parquet are divided, of `tables.BY_DAY`."""

    def target(self, kept: Folder, out: Folder, run: str) -> Target:
        """Where a run of this name writes to."""
        by = BY_DAY if self.form == "delta" else self.by
        return Target(kept.name, self.form, out.name, run, self.fields, by, self.where)


class RunState(msgspec.Struct):
    """What is kept beside the files of a run that has not ended."""

    settings: PipelineSettings
    sizes: dict[str, tuple[int, int]]
    """Of each file: its size and when it was changed."""
    parts: int
    run: str
    base: int = 0
    """The index of its first file."""

    def like(self, other: RunState) -> bool:
        """Whether it is of the same run."""
        mine, theirs = (msgspec.to_builtins(msgspec.structs.replace(one, run="")) for one in (self, other))
        return bool(mine == theirs)


class Intent(msgspec.Struct):
    """What a run of Delta tables commits; whoever finds it commits what is missing."""

    run: str
    receipts: list[Receipt]


class Progress(msgspec.Struct):
    """How far a run is; bytes are those of the ranges whose tasks have ended, about."""

    what: str
    tasks: int = 0
    total: int = 0
    read: int = 0
    bytes: int = 0


class Points:
    """Where files were captured, and the numbers of networks where these are kept separate."""

    def __init__(self, settings: PipelineSettings, known: Sequence[str] = ()) -> None:
        self._pattern = None
        if settings.point is not None:
            try:
                self._pattern = re.compile(settings.point)
            except re.error as error:
                raise UsageError(f"--point: {settings.point} is no regular expression: {error}") from error
        self.known = list(known)
        """All points so far; the number of a network is its place here, from 1."""
        self._numbers = {point: number for number, point in enumerate(self.known, 1)}

    def of(self, name: str) -> str:
        """Where a file was captured."""
        found = None if self._pattern is None else self._pattern.search(name)
        if found is None:
            return name.rpartition("/")[0]
        return next((one for one in found.groups() if one is not None), found[0])

    def network(self, point: str) -> int:
        """The number of the network of a point."""
        number = self._numbers.get(point)
        if number is None:
            if len(self.known) + 1 >= NETWORKS:
                raise UsageError(f"there are more than {NETWORKS:,} points of capture to be kept separate")
            self.known.append(point)
            number = self._numbers[point] = len(self.known)
        return number


class Job:
    """What every run does: look at captures, and dissect them into the files of some parts."""

    cluster: SparkTasks
    """Where tasks run; to be set before there are any."""

    def __init__(self, settings: PipelineSettings, show: Callable[[Progress], None] = lambda _: None) -> None:
        self.settings = settings
        self.show = show
        self.points = Points(settings)

    def look(self, files: list[str], size: int, copies: Folder) -> Plan:
        """Find the ranges of files that have so many bytes together; packed ones are unpacked to a folder."""
        here = size <= LOCALLY
        networks = [self.points.network(self.points.of(file)) for file in files] if self.settings.separate else []

        def unpacked(packed: Sequence[str]) -> list[Copy]:
            made = [(file, copies.at(f"{uuid.uuid4().hex}.capture").name) for file in packed]
            large = sum(size for size, _ in stamps(packed).values()) * UNPACKED > LOCALLY
            spread = partial(self._spread, "unpacking", size) if large else map
            return list(spread(unpack, made))

        run = None if here else partial(self._spread, "looking", size)
        return plan(files, self._range(size), run, unpacked, networks)

    def _range(self, size: int) -> int:
        """Bytes that one task reads, about."""
        return min(self.settings.split, max(size // max(self.cluster.cores, 1) + 1, LEAST_RANGE))

    def _spread(self, what: str, size: int, function: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
        """The result of a function for each of these, of which tasks have several where there are very many."""
        count = min(len(items), SPREAD * self.cluster.cores)
        some = self.cluster.each(partial(_each, function), [items[at::count] for at in range(count)], self._watch(what, size))
        return [some[at % count][at // count] for at in range(len(items))]

    def _watch(self, what: str, size: int) -> Watch:
        return lambda ended, total, share: self.show(Progress(what, ended, total, int(size * share), size))

    def parts(self, payload: int) -> int:
        """How many parts conversations of so much payload are divided into."""
        few = min(PARTS * self.cluster.cores, payload // LEAST_PART_BYTES + 1)
        return self.settings.parts or max(few, payload // PART_BYTES + 1)

    def tasks(self, found: Plan, carry: Mapping[str, Any] | None = None) -> tuple[list[TaskInput], int]:
        """The tasks that read the captures of a plan, and the number of parts for what they do not dissect themselves."""
        settings = self.settings
        here = settings.parts is None and all(storage.local(one.path) is not None for one in found.splits)
        readers = self.cluster.cores if here and carry is None and not found.dependent else 0
        made, share = tasks.sources(found, self._range(found.bytes), carry, readers)
        payload = int(sum(split.payload for split in found.splits) * share)
        return made, self.parts(payload) if share else 0

    def options(self, found: Plan) -> Options:
        """What tasks dissect by. Keys of TLS are read where they are needed, from the captures too: none goes through Spark."""
        given = self.settings.options
        return replace(given, keylog=(*given.keylog, *found.secrets), findings=self.settings.findings, entries=self.settings.entries)

    def dissect(self, work: Work, made: Sequence[TaskInput], size: int, done: Collection[int] = (), depend: bool = False) -> None:
        """Write the parts that are not done, with a receipt for each: those of the tasks, and after them those that these send to.

        `depend`: packets depend on each other across conversations.
        """
        for source in made:
            source.done = source.part in done
        first = len(made)
        wanted = [part for part in range(work.count) if first + part not in done]
        watch = self._watch("dissecting", size)
        if not wanted:
            left = [source for source in made if not source.done]
            self.cluster.each(partial(_at_home, msgspec.structs.replace(work, count=0)), left, watch)
            return
        others = None
        if depend and not made[0].alone:
            others = tasks.in_time, made, partial(tasks.from_order, work.count, work.carrying)
        second = partial(_together, work, first, frozenset(done))
        self.cluster.sent(partial(tasks.at_home, work), made, others, work.count, second, watch)

    def gather(
        self, target: Target, first: int, points: PointOf, done: list[Receipt], before: Sequence[ConversationRow] = (), most: int = 1 << 30
    ) -> Gathered:
        """Write what parts tell together, as parts from `first` on whose receipts come to those that are `done`; conversations are also
        related to those `before`. `most`: so many tasks do it at most."""
        left = [(target.kept.at("files", FRAMES, one.name).name, one.size) for receipt in done for one in receipt.files.get(FRAMES, ())]
        count = min(sum(size for _, size in left) // BUCKET + 1, most)
        names = [name for name, _ in left]
        if count == 1:
            made = [gathered(target, points, first, 0, chain.from_iterable(map(frames, names)), before)]
        else:
            second = partial(gathered, target, points, first)
            made = self.cluster.sent(partial(by_server, count), names, None, count, second, self._watch("gathering", 0))
        result = Gathered([], [], defaultdict(LatencyGroup), slowest(one for some in made for one in some.slowest), [])
        with PartWriter(target, first + count, points) as writer:
            writer.put("findings", findings_of(one for some in made for one in some.overviews))
        done.append(writer.receipt)
        for some in made:
            done += some.receipts
            result.related.extend(some.related)
            for key, group in some.commands.items():
                result.commands[key].merge(group)
        return result

    def last_part(
        self, target: Target, points: PointOf, done: list[Receipt], errors: Sequence[Trouble], files: Sequence[Input], *, complete: bool
    ) -> None:
        """Write what the driver knows, as a part behind those that are `done`.

        `complete`: a table that nobody has written anything to gets a file without rows, which says what its columns are.
        """
        with PartWriter(target, max(receipt.part for receipt in done) + 1, points) as last:
            last.put("errors", errors)
            last.put("files", files)
            for table in tables_with(target.fields) if complete else ():
                if not any(table in receipt.files for receipt in done) and not last.waits(table):
                    last.empty(table)
        done.append(last.receipt)


class Gathered(NamedTuple):
    """What parts tell together, for the driver."""

    receipts: list[Receipt]
    related: list[ConversationRow]
    """The conversations that were related, where they were in the driver."""
    commands: defaultdict[tuple[str, str], LatencyGroup]
    """Exchanges by protocol and command."""
    slowest: list[tuple[int, dict[str, Any]]]
    overviews: list[Any]
    """What rules go by that look at several conversations, of each task."""


def gathered(
    target: Target, points: PointOf, first: int, bucket: int, blocks: Iterable[bytes], before: Sequence[ConversationRow] | None = None
) -> Gathered:
    """Write what frames tell together. `before`: conversations that they are related to as well, None: in a task, which gives none back."""
    found = Together(blocks)
    with PartWriter(target, first + bucket, points) as writer:
        writer.receipt.reports += found.relate(before or ())
        for table, rows in (("conversations", found.related), ("latency", found.minutes()), ("findings", found.findings())):
            writer.put(table, rows, found.files)
        for table, left in found.rows:
            writer.take(table, left)
    return Gathered([writer.receipt], found.related if before is not None else [], found.commands, found.slowest, found.overviews)


def _each(function: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
    return [function(one) for one in items]


def _at_home(work: Work, source: TaskInput) -> int:
    for _ in tasks.at_home(work, source):
        raise AssertionError
    return source.part


def _together(work: Work, first: int, done: Collection[int], part: int, blocks: Any) -> int:
    return first + part if first + part in done else tasks.together(work, first + part, blocks)


class PipelineRun(Job):
    """Reads captures and writes tables to `out`, which is not there or empty, or is added to."""

    def __init__(self, settings: PipelineSettings, out: str, show: Callable[[Progress], None] = lambda _: None) -> None:
        super().__init__(settings, show)
        self.out = storage.folder(out)
        self.folder = partial_folder(self.out)
        self.files: list[str] = []
        self.others: list[str] = []
        """What is left out of folders, as it is no capture."""
        self.stamps: dict[str, tuple[int, int]] = {}
        self.plan: Plan | None = None
        self.rows: dict[str, int] = {}
        self.bugs: list[str] = []
        """What to tell of bugs of ours."""
        self.resumed = 0
        self.gathered: Gathered | None = None
        self.suspected: ConversationRow | None = None
        """The first conversation that was read as it was asked for, but holds a login of another protocol."""
        self.left_out = 0
        """Captures that are in the tables already."""
        self.target: Target | None = None
        self._written = False
        self._lock: int | None = None
        self._delta: Delta | None = None
        self._known = Captures()
        self._base = 0

    def prepare(self, resume: bool = False) -> bool:
        """All that can go wrong before a task runs; False where there is nothing to do."""
        settings = self.settings
        settings.sources = [storage.normal(source) for source in settings.sources]
        self.files = expand(settings.sources, self.others)
        self.stamps = stamps(self.files)
        self._resume = resume
        _writable(self.out, self.folder)
        self._lock = lock(self.folder, f"another streamdump writes to {storage.base(self.out.name)}")
        try:
            return self._begin_delta() if settings.form == "delta" else True
        except BaseException:
            self.close()
            raise

    def _begin_delta(self) -> bool:
        """Find out what is in the tables, and commit what another run left."""
        from .delta import Delta, check

        check()
        self._delta = delta = Delta(self.out, self.settings.fields)
        intent = self._intent()
        if intent is not None or self.settings.append:
            delta.begin()
        if intent is not None:
            _commit_delta(delta, intent)
            self.folder.at("commit.json").remove()
        if self.settings.append:
            self._known = known = Captures(delta.captures())
            self._base = known.next
            in_already = each(lambda file: known.same(file, self.stamps[file][0]), self.files)
            there = [file for file, left_out in zip(self.files, in_already, strict=True) if not left_out]
            self.left_out = len(self.files) - len(there)
            self.files = there
        return bool(self.files)

    def _intent(self) -> Intent | None:
        try:
            return msgspec.json.decode(self.folder.at("commit.json").read(), type=Intent)
        except (OSError, msgspec.MsgspecError):
            return None

    def go(self, cluster: SparkTasks) -> None:
        """Do it all; an interruption leaves the finished parts for `resume`, and nothing in `out`."""
        self.cluster = cluster
        sizes = {file: self.stamps[file] for file in self.files}
        scratch = storage.folder(cluster.scratch) if cluster.scratch else self.folder.at("unpacked")
        found = self.plan = self._new(self.look(self.files, self.size, scratch))
        made, count = self.tasks(found)
        parts = len(made) + count
        done = self._begin(RunState(self.settings, sizes, parts, uuid.uuid4().hex[:8], self._base))
        if self._delta is not None and not self._delta.claim:
            self._delta.begin()
        # What was written when all parts were there is written again.
        done = {part: receipt for part, receipt in done.items() if part < parts}
        self.resumed = len(done)
        points = {self._base + index: self.points.of(file) for index, file in enumerate(found.files)}
        paths = {split.file: split.path for split in found.splits}
        assert self.target is not None
        self.target.first_ns = first_packet(found.splits)
        ends_ns = ends_of(last_packets(found.splits), {(split.file, split.network) for split in found.splits})
        work = Work(self.target, self.options(found), paths, points, None, count, ends_ns=ends_ns)
        if len(done) < parts:
            self.dissect(work, made, found.bytes, done.keys(), bool(found.dependent))
        self._finish(found, parts, points)

    @property
    def size(self) -> int:
        """Bytes of the captures."""
        return sum(self.stamps[file][0] for file in self.files)

    @property
    def begun(self) -> bool:
        """Whether there is something that `resume` could go on with."""
        return self.target is not None and self.folder.at("state.json").exists()

    @property
    def committed(self) -> bool:
        """Whether the tables are there."""
        if self._delta is not None or not isinstance(self.out, Disk):
            return self._written
        return self.out.at("messages").exists()

    def tidy(self) -> int:
        """What a run that failed leaves behind: nothing that takes room but the parts that are done; how many there are."""
        if self.target is None:
            return 0
        with suppress(OSError, msgspec.MsgspecError):
            forget_unnamed(self.target)
            done = sum(bool(receipt.files) for receipt in receipts(self.folder).values())
            if not done:
                self.folder.remove()
            return done
        return 0

    def close(self) -> None:
        """Let others write to this output; nothing stays of a run that did not begin."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
        if isinstance(self.folder, Disk):
            with suppress(OSError):
                if self.folder.names() == ["lock"]:
                    self.folder.remove()

    def _new(self, found: Plan) -> Plan:
        """A plan without the captures that are in already, its files counted from the first index of this run."""
        again = set()
        grown = []
        begins = {split.file: split.path for split in found.splits}
        for index, (path, head, size) in enumerate(zip(found.files, found.heads, found.sizes, strict=True)):
            if self._known.has(head, size):
                again.add(index)
                continue
            before = self._known.before(head, partial(storage.pieces, begins.get(index, path), 0, HEAD))
            if before is not None:
                reason = f"has another size than when it was read ({before:,} bytes); --follow reads captures on that grow"
                grown.append(Trouble(index, path, before or None, None, reason, max((size or 0) - before, 0)))
        self.left_out += len(again)
        again.update(one.file for one in grown)
        troubles = [*(one for one in found.troubles if one.file not in again), *grown]
        kept = [index for index in range(len(found.files)) if index not in again]
        at = {index: self._base + place for place, index in enumerate(kept)}
        late = self._base + len(kept)
        for one in troubles:
            one.file = at.get(one.file, late)
        splits = [split for split in found.splits if split.file not in again]
        for split in splits:
            split.file = at[split.file]
        troubles.sort(key=lambda one: one.file)

        def some(values: Sequence[Any]) -> list[Any]:
            return [values[index] for index in kept]

        times = some(found.latest_ns), some(found.middle_ns)
        # Captures that are in already may hold keys of conversations of the others
        return Plan(some(found.files), splits, troubles, *times, some(found.heads), some(found.sizes), found.secrets)

    def _begin(self, state: RunState) -> dict[int, Receipt]:
        """Take over or make anew what this run writes; the parts that are done."""
        place = self.folder.at("state.json")
        if self._resume:
            try:
                before = msgspec.json.decode(place.read(), type=RunState)
            except (OSError, msgspec.MsgspecError):
                before = None
            if before is not None and before.like(state):
                self.target = self.settings.target(self.folder, self.out, before.run)
                return receipts(self.folder)
        for name in self.folder.names():
            if name not in ("lock", "unpacked"):
                self.folder.at(name).remove()
        self.target = self.settings.target(self.folder, self.out, state.run)
        try:
            place.write(msgspec.json.encode(state))
        except OSError as error:
            raise UsageError(f"{self.out}: cannot be written: {storage.why(error)}") from error
        return {}

    def _finish(self, found: Plan, parts: int, points: Mapping[int, str]) -> None:
        """Write what needed all parts, and make the result."""
        done = [receipt for part, receipt in receipts(self.folder).items() if part < parts]
        target = self.target
        assert target is not None
        paths = {self._base + index: path for index, path in enumerate(found.files)}
        found.troubles += twice(done, paths)
        complete = self._delta is None
        self.gathered = self.gather(target, parts, points, done)
        self.last_part(target, points, done, found.troubles, self._inputs(found), complete=complete)
        self.suspected = suspected(done)
        self.bugs = texts_of(done, paths)
        for table in TABLES:
            self.rows[table] = sum(receipt.rows.get(table, 0) for receipt in done)
        if self._delta is None:
            commit(target, done)
        else:
            intent = Intent(target.run, done)
            self.folder.at("commit.json").write(msgspec.json.encode(intent), durable=True)
            _commit_delta(self._delta, intent)
            self.folder.remove()
        self._written = True
        if self._delta is not None:
            self._delta.compact()

    def _inputs(self, found: Plan) -> list[Input]:
        packets = dict.fromkeys(range(self._base, self._base + len(found.files)), 0)
        for split in found.splits:
            packets[split.file] += split.packets
        return [
            Input(self._base + index, path, self.stamps.get(path, (0, 0))[0], packets[self._base + index], self.points.of(path), head, size)
            for index, (path, head, size) in enumerate(zip(found.files, found.heads, found.sizes, strict=True))
        ]


def texts_of(done: Iterable[Receipt], paths: Mapping[int, str]) -> list[str]:
    """A line for each bug of ours that parts told of, in the order of the captures."""
    reports = [report for receipt in done for report in receipt.reports]
    ordered = sorted(reports, key=lambda one: (one.file or 0, one.number or 0, one.what))
    return [one.text(None if one.file is None else paths.get(one.file)) for one in ordered]


def _commit_delta(delta: Delta, intent: Intent) -> None:
    files: dict[str, list[Any]] = {}
    for table, one in files_of(intent.receipts):
        files.setdefault(table, []).append(one)
    delta.commit(f"streamdump.run.{intent.run}", 1, files)


def partial_folder(out: Folder) -> Folder:
    """Where a run keeps its files until it has ended: beside `out`, on the same file system."""
    if isinstance(out, Disk):
        return Disk(out.path.parent / f".{out.path.name}.partial")
    above, _, name = out.name.rpartition("/")
    return storage.folder(f"{above}/.{name}.partial")


def _writable(out: Folder, folder: Folder) -> None:
    """Raises `UsageError` where tables cannot be written."""
    try:
        folder.make()
        probe = folder.at(f"probe-{uuid.uuid4().hex}")
        probe.write(b"")
        probe.remove()
    except OSError as error:
        raise UsageError(f"{out}: cannot be written: {storage.why(error)}") from error


def lock(folder: Folder, why: str) -> int | None:
    """Keep others from writing to this output; the lock goes with the process."""
    if not isinstance(folder, Disk):
        return None
    try:
        handle = os.open(folder.path / "lock", os.O_RDWR | os.O_CREAT, 0o644)
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(handle)
        raise UsageError(f"{folder.path.parent}: {why}") from error
    except OSError as error:
        raise UsageError(f"{folder.path.parent}: cannot be written: {storage.why(error)}") from error
    return handle
