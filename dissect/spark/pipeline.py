"""One run of the bulk pipeline: captures in, tables out. Prints nothing."""

from __future__ import annotations

import re
import shutil
import uuid
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any

import msgspec

from ..diagnose.network import NetworkEvidence
from ..errors import Report, UsageError, refuse
from ..model import ConversationRow, Options
from . import PARTS, latencies, storage, tasks
from .already_read import Captures
from .flows import CaptureFacts, PointOf, earliest, errors_of
from .keys import NETWORKS
from .rotation import KnownFile
from .session import SparkTasks, Watch
from .sink import Sink, sink_of
from .splits import (
    TARGET,
    FileError,
    LastPacket,
    Plan,
    PlannedFile,
    cut,
    each,
    ends_of,
    expand,
    first_packet,
    last_packets,
    plan,
    stamps,
    unpack,
)
from .storage import Folder
from .tables import BY_DAY, TABLES, Input, tables_with
from .tasks import TaskInput, Work, flows_carried
from .together import BUCKET, Together, block_of, by_server, findings_of
from .write import CARRIED, FRAMES, PartWriter, Receipt, Target, Written

FORMAT = 10
"""Changes when an older state could not be taken up."""

UNIT_BYTES = 16 << 30
"""Bytes from which on captures together, which no later one overlaps in time, are a unit."""

RELATED_KEPT = 10_000
"""Conversations that later ones may still be related to."""

LOCALLY = 64 << 20
"""Maximum bytes of captures that the driver examines instead of Spark."""

UNPACKED = 8
"""The size of an unpacked capture, in times of its packed size, about."""

LEAST_RANGE = 16 << 20
"""Captures of fewer bytes together are one task, which costs least; larger ones keep all processors busy."""

PART_BYTES = 128 << 20
LEAST_PART_BYTES = 8 << 20
"""Bytes of the captures that a part reads, about: one for all where there is little, more of them where there is much."""


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
    """A regular expression that finds in a file's name where it was captured; None: its folder."""
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

    def __post_init__(self) -> None:
        try:
            re.compile(self.point or "")
        except re.error as error:
            raise UsageError(f"--point: {self.point} is no regular expression: {error}") from error

    def point_of(self, file: str) -> str:
        """Where a file was captured."""
        found = None if self.point is None else re.search(self.point, file)
        if found is None:
            return file.rpartition("/")[0]
        return next((one for one in found.groups() if one is not None), found[0])


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


class State(msgspec.Struct):
    """The state after a unit, which a killed driver leaves too."""

    like: dict[str, Any]
    """What a run that goes on has to have the same."""
    base: int = 0
    """The index of its first file."""
    batch: int = 0
    """Units done."""
    version: int = 0
    """The transaction of Delta tables that commits it."""
    taken: dict[str, KnownFile] = msgspec.field(default_factory=dict)
    """The files of a folder that is followed, and what was read of them."""
    gone: list[KnownFile] = msgspec.field(default_factory=list)
    """Files that were read and are gone, and may come back."""
    errors: list[FileError] = msgspec.field(default_factory=list)
    """Of files of this folder, to be reported by the next unit."""
    files: int = 0
    """The index of the next file."""
    packets: int = 0
    rows: dict[str, int] = msgspec.field(default_factory=dict)
    place: str = ""
    """The last unit's folder."""
    carry: list[str] = msgspec.field(default_factory=list)
    """The files that hold open conversations: folder of their unit, and name."""
    written: dict[str, list[Written]] = msgspec.field(default_factory=dict)
    """Files by table that the last unit wrote."""
    points: PointsOf = msgspec.field(default_factory=PointsOf)
    networks: list[str] = msgspec.field(default_factory=list)
    """The points whose captures are kept separate, in the order of their numbers."""
    related: list[ConversationRow] = msgspec.field(default_factory=list)
    """Conversations that later ones may be related to."""
    secrets: list[str] = msgspec.field(default_factory=list)
    """Captures that hold keys of TLS, as far as they are still there."""
    first_ns: int | None = None
    """When the first packet of the first captures came."""
    last: dict[int, LastPacket] = msgspec.field(default_factory=dict)
    """By network the last packet of all captures."""

    def next(self) -> State:
        """A state to become that after another unit."""
        run = uuid.uuid4().hex[:8]
        points = PointsOf([*self.points.begin], [*self.points.point])
        # A name of its own: tasks of a driver that was killed may still write to what they know
        place = f"batch-{self.batch + 1}-{run}"
        return msgspec.structs.replace(self, batch=self.batch + 1, place=place, points=points, taken=dict(self.taken), rows=dict(self.rows))


def likeness(what: dict[str, Any]) -> dict[str, Any]:
    """What runs have to have the same, the format of the state too, as it is when it was written and read."""
    found: dict[str, Any] = msgspec.json.decode(msgspec.json.encode({"version of streamdump": FORMAT, **what}))
    return found


class Batch(msgspec.Struct):
    """What a unit did."""

    number: int
    files: int
    packets: int
    rows: dict[str, int]
    errors: list[FileError]
    bugs: list[str]
    """Reports of bugs of ours."""
    suspected: ConversationRow | None
    """The first conversation that turned out to hold a login of another protocol than the one that it was asked to be read as."""
    counts: list[Any]
    """Counts of exchanges by `latencies.COMMANDS`."""
    slowest: list[dict[str, Any]]


class Progress(msgspec.Struct):
    """How far a run is; bytes are those of the ranges whose tasks have ended, about."""

    what: str
    tasks: int = 0
    total: int = 0
    read: int = 0
    bytes: int = 0


def networks_of(points: Iterable[str], known: list[str]) -> list[int]:
    """The numbers of the networks of points that are kept separate, from 1, in the order of those `known`, which new ones are added to."""
    numbers = {point: number for number, point in enumerate(known, 1)}
    found = [numbers.setdefault(point, len(numbers) + 1) for point in points]
    if len(numbers) >= NETWORKS:
        raise UsageError(f"there are more than {NETWORKS:,} points of capture to be kept separate")
    known[:] = numbers
    return found


class Pipeline:
    """One loop over units of files: each is dissected with what was carried of those before, and committed in one step."""

    cluster: SparkTasks
    """Where tasks run; to be set before there are any."""
    sink: Sink
    state: State
    running = ""
    """The folder of the unit at hand."""

    def __init__(self, settings: PipelineSettings, out: str, place: Callable[[Folder], Folder], show: Callable[[Progress], None]) -> None:
        """`place`: returns the folder of unfinished files."""
        self.settings = settings
        self.show = show
        self.network = NetworkEvidence()
        """Evidence of ICMP and DNS in the captures of a unit."""
        self.out = storage.folder(out)
        self.folder = place(self.out)

    def unit(self, state: State, found: Plan, inputs: list[Input], paths: Mapping[int, str], *, last: bool) -> Batch:
        """Dissect files and commit their tables; `state` becomes the state after them.

        `inputs`: their rows of table `files`; `paths`: of files, by index; `last`: nothing comes after them, so conversations that are
        open end with them.
        """
        folder = self.folder.at(state.place)
        self.network = found.network
        self.running = state.place
        secrets = dict.fromkeys((*state.secrets, *found.secrets))
        state.secrets = found.secrets = [name for name in secrets if storage.status(name) is not None]
        state.last = last_packets(found.splits, state.last)
        if state.first_ns is None:
            state.first_ns = first_packet(found.splits)
        given = self.settings
        by = BY_DAY if given.form == "delta" else given.by
        target = Target(folder.name, given.form, self.out.name, f"{state.place.rpartition('-')[2]}-", given.fields, by, given.where)
        target.first_ns = state.first_ns
        packets = sum(split.number + split.packets - max(split.number, split.after) for split in found.splits)
        done: list[Receipt] = []
        if packets or (last and state.carry):
            carry = flows_carried([self.folder.at(*one.split("/")).name for one in state.carry])
            made, count = self.tasks(found, carry if carry or not last else None)
            # A packet dated in the future must not end all that is open
            until = None if last else max(split.middle_ns for split in found.splits)
            ends_ns = ends_of(state.last, self._networks(state)) if last else {}
            # Keys of TLS are read where they are needed, from the captures too: none goes through Spark
            keylog = (*given.options.keylog, *found.secrets)
            options = replace(given.options, keylog=keylog, findings=given.findings, entries=given.entries)
            work = Work(target, options, CaptureFacts(until, ends_ns, state.points, errors_of(self.network)), count)
            home, away = partial(tasks.at_home, work), partial(tasks.together, work)
            done += self.cluster.sent(home, made, count, away, self._watch("dissecting", found.bytes))
            state.carry = [f"{state.place}/files/{CARRIED}/{one.name}" for receipt in done for one in receipt.files.get(CARRIED, ())]
        most = 1 if state.related or not last else 1 << 30
        done += self.gather(target, state.points, done, state.related, most)
        if not last:
            state.related = [*state.related, *_every(done, "related")][-RELATED_KEPT:]
        # A table that nobody has written anything to gets a file without rows, which names its columns
        self.last_part(target, state.points, done, found.errors, inputs, complete=state.batch == 1 and given.form != "delta")
        state.packets += packets
        state.written = {table: [one for receipt in done for one in receipt.files.get(table, ())] for table in TABLES}
        rows = {table: sum(one.rows for one in state.written[table]) for table in tables_with(given.fields)}
        state.rows = {table: state.rows.get(table, 0) + many for table, many in rows.items()}
        self.sink.commit(state)
        self.state = state
        self.running = ""
        suspected = earliest(receipt.suspected for receipt in done)
        slowest = latencies.slowest(_every(done, "slowest"))
        bugs = texts_of(_every(done, "reports"), paths)
        return Batch(state.batch, len(inputs), packets, rows, found.errors, bugs, suspected, _every(done, "counts"), slowest)

    def _networks(self, state: State) -> Iterable[tuple[int, int]]:
        """All files with their networks, where captures are kept separate."""
        points = {file: state.points.get(file) for file in range(state.files if self.settings.separate else 0)}
        known = {file: point for file, point in points.items() if point is not None}
        return zip(known, networks_of(known.values(), state.networks), strict=True)

    def close(self) -> None:
        """Let others write to this output."""
        self.sink.close()

    def look(self, files: list[str], size: int, copies: Folder, first: int = 0) -> Plan:
        """Find the ranges of files of `size` bytes together, whose indexes begin with `first`; packed ones are unpacked to a folder."""
        separate = self.settings.separate
        networks = networks_of(map(self.settings.point_of, files), self.state.networks) if separate else []

        def spread(what: str, function: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
            return self.cluster.each(function, items, self._watch(what, size))

        def unpacked(packed: Sequence[PlannedFile]) -> list[PlannedFile]:
            made = [(file, copies.at(f"{uuid.uuid4().hex}.capture").name) for file in packed]
            large = sum(file.size for file in packed) * UNPACKED > LOCALLY
            return spread("unpacking", unpack, made) if large else list(map(unpack, made))

        run = partial(spread, "looking") if size > LOCALLY else None
        scratch = self.cluster.scratch
        fetch = scratch is not None and size < shutil.disk_usage(scratch).free // 2
        return plan(files, self._range(size), run, unpacked, networks, self.settings.findings, fetch, first)

    def _range(self, size: int) -> int:
        """Bytes that one task reads, about."""
        return min(self.settings.split, max(size // max(self.cluster.cores, 1) + 1, LEAST_RANGE))

    def _watch(self, what: str, size: int) -> Watch:
        return lambda ended, total: self.show(Progress(what, ended, total, size * ended // total, size))

    def tasks(self, found: Plan, carry: Mapping[str, Any] | None) -> tuple[list[TaskInput], int]:
        """The tasks that read the captures of a plan, and the number of parts for what they do not dissect themselves."""
        settings, cores = self.settings, self.cluster.cores
        here = settings.parts is None and all(storage.local(one.path) is not None for one in found.splits)
        made, share = tasks.sources(found, self._range(found.bytes), carry, cores if here and carry is None else 0)
        if not share:
            return made, 0
        size = int(found.bytes * share)
        few = min(PARTS * cores, size // LEAST_PART_BYTES + 1)
        return made, settings.parts or max(few, size // PART_BYTES + 1)

    def gather(self, target: Target, points: PointOf, done: list[Receipt], before: Sequence[ConversationRow], most: int) -> list[Receipt]:
        """Write what several parts show together. Conversations are also related to those `before`. `most`: the maximum of tasks."""
        left = [(target.kept.at("files", FRAMES, one.name).name, one.size) for receipt in done for one in receipt.files.get(FRAMES, ())]
        count = min(sum(size for _, size in left) // BUCKET + 1, most)
        names = [name for name, _ in left]
        ports = set(_every(done, "ports"))
        if count == 1:
            made = [gathered(target, points, ports, chain.from_iterable(map(block_of, names)), before)]
        else:
            second = partial(gathered, target, points, ports)
            made = self.cluster.sent(partial(by_server, count), names, count, second, self._watch("gathering", 0))
        with PartWriter(target, points) as writer:
            writer.put("findings", findings_of(self.network, _every(made, "overviews"), writer.receipt.reports))
        return [writer.receipt, *made]

    def last_part(
        self, target: Target, points: PointOf, done: list[Receipt], errors: Sequence[FileError], files: Sequence[Input], *, complete: bool
    ) -> None:
        """Write what the driver knows, and add it to what is `done`.

        `complete`: a table that nobody has written anything to gets a file without rows, which says what its columns are.
        """
        with PartWriter(target, points) as last:
            last.put("errors", errors)
            last.put("files", files)
            for table in tables_with(target.fields) if complete else ():
                if not any(table in receipt.files for receipt in done):
                    last.empty(table)
        done.append(last.receipt)


def _every(done: Iterable[Receipt], name: str) -> list[Any]:
    """All that several parts have of one kind."""
    return [one for receipt in done for one in getattr(receipt, name)]


def gathered(
    target: Target,
    points: PointOf,
    ports: set[int],
    blocks: Iterable[bytes],
    before: Sequence[ConversationRow] | None = None,
) -> Receipt:
    """Write the rows that frames result in. `ports`: of servers of our protocols; `before`: conversations that they are related to as well,
    None: in a task, which returns no conversations."""
    found = Together(blocks)
    with PartWriter(target, points) as writer:
        receipt = writer.receipt
        receipt.reports += found.relate(before or ())
        receipt.related = found.related if before is not None else []
        writer.put("conversations", found.related, found.files)
        writer.put("findings", found.findings(ports), found.files)
        receipt.reports += found.diagnoser.reports
        receipt.overviews = found.overviews
        if found.counts:
            every = latencies.added(found.counts)
            writer.write("latency", latencies.rows(every))
            receipt.counts = [latencies.added([every], latencies.COMMANDS)]
    return receipt


class PipelineRun(Pipeline):
    """Reads captures and writes tables to `out`, which is not there or empty, or is added to."""

    def __init__(self, settings: PipelineSettings, out: str, show: Callable[[Progress], None] = lambda _: None) -> None:
        super().__init__(settings, out, partial_folder, show)
        self.files: list[str] = []
        self.others: list[str] = []
        """Files in folders that are skipped, as they are not captures."""
        self.stamps: dict[str, tuple[int, int]] = {}
        self.plan = Plan({}, [], [])
        self.bugs: list[str] = []
        """Reports of bugs of streamdump."""
        self.resumed = 0
        """Units that were done before."""
        self.counts: list[Any] = []
        """Counts of exchanges by `latencies.COMMANDS`."""
        self.slowest: list[dict[str, Any]] = []
        self.suspected: ConversationRow | None = None
        """The first conversation that was read as it was asked for, but holds a login of another protocol."""
        self.left_out = 0
        """Captures that are in the tables already."""
        self._written = False
        self._known = Captures()
        self.state = State({})
        apart = settings.form != "delta" and self.out.path is not None
        self.sink = sink_of(settings.form, self.folder, self.folder.at("result") if apart else self.out, settings.fields)

    def prepare(self, resume: bool = False) -> bool:
        """All that can go wrong before a task runs, up to what is in the tables already; False where there is nothing to do. To be closed
        in any case."""
        settings = self.settings
        settings.sources = [storage.normal(source) for source in settings.sources]
        self.files = expand(settings.sources, self.others)
        self.stamps = stamps(self.files)
        probe = self.folder.at("probe")
        try:
            probe.write(b"")
        except OSError as error:
            raise UsageError(f"{self.out}: cannot be written: {storage.why(error)}") from error
        probe.remove()
        self.sink.lock(f"another streamdump writes to {storage.base(self.out.name)}")
        taken = not settings.append and bool(self.out.names())
        like = likeness({"settings": settings, "sizes": self.stamps})
        # Completes the commit of another run, and claims Delta tables, which those that are left alone are spared
        before = self.sink.load(State) if resume or not taken else None
        if resume and before is not None and before.like == like:
            self.state, self.resumed = before, before.batch
        else:
            refuse((taken, f"{self.out}: already exists; choose another --out, or remove it"))
            for name in self.folder.names():
                if name != "lock":
                    self.folder.at(name).remove()
            self.state = State(like)
        if settings.append:
            there = self.sink.captures()
            if not self.resumed:
                self.state.base = max([one.file + 1 for one in there], default=0)
            self._known = known = Captures(one for one in there if one.file < self.state.base)
            in_already = each(lambda file: known.same(file, self.stamps[file][0]), self.files)
            wanted = [file for file, left_out in zip(self.files, in_already, strict=True) if not left_out]
            self.left_out = len(self.files) - len(wanted)
            self.files = wanted
        return bool(self.files)

    def go(self, cluster: SparkTasks) -> None:
        """Do it all; an interruption leaves the finished units for `resume`, and nothing in `out`."""
        self.cluster = cluster
        scratch = storage.folder(cluster.scratch) if cluster.scratch else self.folder.at("unpacked")
        found = self.plan = self._new(self.look(self.files, self.size, scratch, self.state.base))
        self.sink.begin()
        if not self.resumed:
            self.state.files = max(found.files, default=-1) + 1
            for index, one in found.files.items():
                self.state.points.add(index, self.settings.point_of(one.path))
        paths = {index: one.path for index, one in found.files.items()}
        # What rules remember is not carried from one unit to the next
        units = ([found] if self.settings.findings else cut(found, UNIT_BYTES))[self.resumed :]
        for some in units:
            batch = self.unit(self.state.next(), some, self._inputs(some), paths, last=some is units[-1])
            self.bugs += batch.bugs
            self.suspected = earliest((self.suspected, batch.suspected))
            self.counts += batch.counts
            self.slowest = latencies.slowest([*self.slowest, *batch.slowest])
        found.errors = [one for some in units for one in some.errors]
        # In Delta tables rows are in with the commit of their unit
        self._written = self.settings.form == "delta"
        self.sink.finish(self.out)
        self._written = True

    @property
    def rows(self) -> dict[str, int]:
        """How many rows each table has."""
        return self.state.rows

    @property
    def size(self) -> int:
        """Bytes of the captures."""
        return sum(self.stamps[file][0] for file in self.files)

    @property
    def committed(self) -> bool:
        """Whether the tables are there."""
        return self._written or (self.settings.form != "delta" and self.out.path is not None and self.out.at("messages").exists())

    def tidy(self) -> int:
        """Remove what a run that failed has left, except the units that are done; return their number."""
        with suppress(OSError):
            if self.running:
                self.folder.at(self.running).remove()
            if not self.state.batch:
                self.folder.remove()
        return self.state.batch

    def close(self) -> None:
        """Let others write to this output; nothing stays of a run that did not begin."""
        alone = self.sink.locked
        super().close()
        if alone and self.folder.names() == ["lock"]:
            self.folder.remove()

    def _new(self, found: Plan) -> Plan:
        """A plan without the captures that are in already."""
        known = {index: self._known.before(one.head, one.place) for index, one in found.files.items()}
        found.errors = [one for one in found.errors if known[one.file] is None]
        # Captures that are in already may hold keys of conversations of the others
        found.splits = [one for one in found.splits if known[one.file] is None]
        for index, before in known.items():
            if before is None:
                continue
            one = found.files.pop(index)
            if before == one.size:
                self.left_out += 1
            else:
                reason = f"has another size than when it was read ({before:,} bytes); --follow reads captures on that grow"
                found.errors.append(FileError(index, one.path, before or None, None, reason, max(one.size - before, 0)))
        return found

    def _inputs(self, found: Plan) -> list[Input]:
        packets = dict.fromkeys(found.files, 0)
        for split in found.splits:
            packets[split.file] += split.packets
        return [
            Input(file, one.path, self.stamps[one.path][0], packets[file], self.settings.point_of(one.path), one.head, one.size)
            for file, one in found.files.items()
        ]


def texts_of(reports: Iterable[Report], paths: Mapping[int, str]) -> list[str]:
    """A line for each bug of streamdump that parts reported, in the order of the captures."""
    ordered = sorted(reports, key=lambda one: (one.file or 0, one.number or 0, one.what))
    return [one.text(None if one.file is None else paths.get(one.file)) for one in ordered]


def partial_folder(out: Folder) -> Folder:
    """Where a run keeps its files until it has ended: beside `out`, on the same file system."""
    return out.above().at(f".{storage.base(out.name)}.partial")
