"""One run of the bulk pipeline: captures in, tables out. Prints nothing."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from dissect.errors import Report, UsageError
from dissect.inspector import relate
from dissect.model import Options
from dissect.spark import PARTS, by_conversation
from dissect.spark.rows import CARRY_IN_ORDER, DDL
from dissect.spark.session import Session
from dissect.spark.source import packets as read_packets
from dissect.spark.splits import TARGET, Plan, expand, plan
from dissect.spark.tables import TABLES, Input
from dissect.spark.write import CarryFile, Receipt, Writer, commit, receipts

POLL_S = 0.25

LOCALLY = 64 << 20
"""Captures of so few bytes together are looked at right here instead of by Spark."""

PART_BYTES = 128 << 20
"""Payload of a part, about."""


class Settings(msgspec.Struct):
    """What a run does; a run that goes on where another ended has the same."""

    sources: list[str]
    form: str = "parquet"
    payload: str = "shuffle"
    split: int = TARGET
    parts: int | None = None
    options: Options = msgspec.field(default_factory=Options)


class State(msgspec.Struct):
    """What is kept beside the files of a run that has not ended."""

    settings: Settings
    sizes: dict[str, tuple[int, int]]
    """Of each file: its size and when it was changed."""
    parts: int


class Progress(msgspec.Struct):
    """How far a run is; bytes are those of the ranges whose tasks have ended, about."""

    what: str
    tasks: int = 0
    total: int = 0
    read: int = 0
    bytes: int = 0


class Job:
    """What every run does: look at captures, and dissect them into the files of some parts."""

    def __init__(self, session: Session, settings: Settings, show: Callable[[Progress], None] = lambda _: None) -> None:
        self.session = session
        self.settings = settings
        self.show = show

    def look(self, files: list[str], size: int) -> Plan:
        """Find the ranges of files that have so many bytes together."""
        split = self.settings.split
        if size <= LOCALLY:
            return plan(files, split)
        spark = self.session.spark

        def run(function: Callable[[Any], Any], pieces: Sequence[Any]) -> list[Any]:
            context = spark.sparkContext
            return list(self._watched("looking", size, lambda: context.parallelize(pieces, len(pieces)).map(function).collect()))

        return plan(files, split, run)

    def parts(self, found: Plan) -> int:
        """How many parts its conversations are divided into."""
        cores = self.session.spark.sparkContext.defaultParallelism
        return self.settings.parts or max(PARTS * cores, sum(split.payload for split in found.splits) // PART_BYTES + 1)

    def dissect(
        self,
        found: Plan,
        count: int,
        folder: Path,
        done: Collection[int] = (),
        carry: Sequence[str] = (),
        until: int | None = None,
        *,
        depended: bool = False,
    ) -> None:
        """Write the parts that are not done to `folder`, with a receipt for each.

        `carry`: files with the conversations that were left open by what was read before; `until`: the capture time up to which all
        packets are there by now, None where no more will come. With it open conversations are left as files of the same kind. `depended`:
        packets before depended on each other across conversations.
        """
        settings, spark = self.settings, self.session.spark
        shuffled = settings.payload == "shuffle"
        rows_of = partial(read_packets, spark, target=settings.split, payload=shuffled)
        packets, ordered = rows_of(found.splits), []
        dependent = found.dependent
        if dependent:
            ordered.append(rows_of(dependent, ordered=True).where("kind > 0 or digest is not null"))
        if carry:
            carried = spark.read.schema(DDL).parquet(*map(literal, carry))
            packets = packets.unionByName(carried)
            if depended:
                ordered.append(carried.where(f"kind = {CARRY_IN_ORDER}"))
        rows = by_conversation(packets, count, ordered, sorted(done), until is not None)
        form = settings.form
        # Keys of TLS are read where they are needed, from the captures too: none goes through Spark
        options = msgspec.structs.replace(settings.options, keylog=(*settings.options.keylog, *found.secrets))
        paths = {split.file: split.path for split in found.splits}
        done = frozenset(done)

        def write(batches: Iterator[Any]) -> Iterator[Any]:
            import pyarrow as pa
            from pyspark import TaskContext

            from dissect.spark.flows import dissect

            context = TaskContext.get()
            assert context is not None
            if context.partitionId() in done:
                return
            writer = Writer(folder, context.partitionId(), form)
            left = CarryFile(writer)
            for results in dissect(batches, options, paths, until):
                writer.add(results)
                left.add(results)
            left.close()
            writer.close()
            yield pa.RecordBatch.from_pydict({"part": pa.array([writer.part], pa.int32())})

        parts = {row.part for row in self._watched("dissecting", found.bytes, lambda: rows.mapInArrow(write, "part int").collect())}
        assert parts | done == set(range(count))

    def _watched(self, what: str, size: int, action: Callable[[], Any]) -> Any:
        """The result of an action that runs beside us, so that an interruption is heard at once; shows how far its tasks are."""
        from pyspark import InheritableThread

        result: list[Any] = []
        failure: list[BaseException] = []

        def work() -> None:
            try:
                result.append(action())
            except BaseException as error:
                failure.append(error)

        thread = InheritableThread(target=work, daemon=True)
        thread.start()
        tracker = self.session.spark.sparkContext.statusTracker()
        stages: dict[int, tuple[int, int]] = {}
        first: int | None = None
        while thread.is_alive():
            thread.join(POLL_S)
            for stage in tracker.getActiveStageIds():
                info = tracker.getStageInfo(stage)
                if info is not None:
                    stages[stage] = (info.numCompletedTasks, info.numTasks)
                    first = stage if first is None else min(first, stage)
            ended, total = (sum(column) for column in zip(*stages.values(), strict=True)) if stages else (0, 0)
            own = stages.get(first, (0, 1)) if first is not None else (0, 1)
            self.show(Progress(what, ended, total, size * own[0] // max(own[1], 1), size))
        if failure:
            raise failure[0]
        return result[0]


class Run(Job):
    """Reads captures and writes tables to `out`, which is not there or empty."""

    def __init__(self, session: Session, settings: Settings, out: Path, show: Callable[[Progress], None] = lambda _: None) -> None:
        super().__init__(session, settings, show)
        self.out = out
        self.plan: Plan | None = None
        self.rows: dict[str, int] = {}
        self.bugs: list[str] = []
        """What to tell of bugs of ours."""
        self.resumed = 0
        self.folder = partial_folder(out)

    def go(self, resume: bool = False) -> None:
        """Do it all; an interruption leaves the finished parts for `resume`, and nothing in `out`."""
        files = expand(self.settings.sources)
        sizes = {file: _stamp(file) for file in files}
        found = self.plan = self.look(files, sum(size for size, _ in sizes.values()))
        count = self.parts(found)
        done = self._begin(State(self.settings, sizes, count), resume)
        # What was written when all parts were there is written again.
        done.pop(count, None)
        self.resumed = len(done)
        if len(done) < count and found.splits:
            self.dissect(found, count, self.folder, done.keys())
        self._finish(found, count)

    def _begin(self, state: State, resume: bool) -> dict[int, Receipt]:
        """Make or take over the folder that this run writes to; the parts that are done."""
        path = self.folder / "state.json"
        if resume:
            try:
                before = msgspec.json.decode(path.read_bytes(), type=State)
            except (OSError, msgspec.MsgspecError):
                before = None
            if before is not None and msgspec.to_builtins(before) == msgspec.to_builtins(state):
                return receipts(self.folder)
        shutil.rmtree(self.folder, ignore_errors=True)
        try:
            self.folder.mkdir(parents=True)
            path.write_bytes(msgspec.json.encode(state))
        except OSError as error:
            raise UsageError(f"{self.out}: cannot be written: {(error.strerror or str(error)).lower()}") from error
        return {}

    def _finish(self, found: Plan, count: int) -> None:
        """Write what needed all parts, and make the result."""
        done = [receipt for part, receipt in receipts(self.folder).items() if part < count]
        last = Writer(self.folder, count, self.settings.form)
        related = [row for receipt in done for row in receipt.related]
        related.sort(key=lambda row: (row.time_ns, row.conversation))
        unrelated = reports_of(relate(related))
        last.put("conversations", related)
        last.put("errors", found.troubles)
        last.put("files", _files(found))
        for table in TABLES:
            if not any(table in receipt.files for receipt in done) and not last.waits(table):
                last.empty(table)
        done.append(last.close())
        self.bugs = texts_of([*unrelated, *(report for receipt in done for report in receipt.reports)], dict(enumerate(found.files)))
        for table in TABLES:
            self.rows[table] = sum(receipt.rows.get(table, 0) for receipt in done)
        commit(self.folder, self.out, done)


def reports_of(failed: list[str]) -> list[Report]:
    """What to report where conversations could not be related to each other."""
    return [Report(what, "conversations lack what others tell of them") for what in failed]


def texts_of(reports: Iterable[Report], paths: Mapping[int, str]) -> list[str]:
    """A line for each, in the order of the captures."""
    ordered = sorted(reports, key=lambda one: (one.file or 0, one.number or 0, one.what))
    return [one.text(None if one.file is None else paths.get(one.file)) for one in ordered]


def partial_folder(out: Path) -> Path:
    """Where a run keeps its files until it has ended: beside `out`, on the same file system."""
    return out.absolute().parent / f".{out.absolute().name}.partial"


def _files(found: Plan) -> list[Input]:
    packets = dict.fromkeys(range(len(found.files)), 0)
    for split in found.splits:
        packets[split.file] += split.packets
    return [Input(index, path, _stamp(path)[0], packets[index]) for index, path in enumerate(found.files)]


def _stamp(file: str) -> tuple[int, int]:
    try:
        status = Path(file).stat()
    except OSError:
        return 0, 0
    return status.st_size, status.st_mtime_ns


def literal(path: str) -> str:
    """A path in which Hadoop takes no character for a pattern."""
    return re.sub(r"([*?\[\]{}\\])", r"\\\1", path)


def views(spark: Any, out: Path, form: str) -> None:
    """Makes the tables known to SQL by their names; `variant` holds the fields of messages to be asked by path.

    The structs of protocols are there in Parquet only.
    """
    from pyspark.sql.pandas.types import from_arrow_schema

    from dissect.spark.tables import schema
    from dissect.spark.write import flat

    for table in TABLES:
        columns = schema(table, form == "parquet")
        if form == "csv":
            columns = flat(columns)
        reader = spark.read.schema(from_arrow_schema(columns))
        if form == "csv":
            reader = reader.option("header", "true").option("multiLine", "true").option("escape", '"')
        found = reader.format(form).load(literal(str((out / table).absolute())))
        for name in ("fields", "facts"):
            if name in found.columns:
                found = found.selectExpr("*", f"parse_json({name}) as {'variant' if name == 'fields' else 'facts_variant'}")
        found.createOrReplaceTempView(table)
