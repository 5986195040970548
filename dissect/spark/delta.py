"""Delta tables, through `deltalake`: appended to, committed at once or not at all, also where renaming a file is no commit.

Tasks write Parquet files into the folders of the tables, where nobody who reads Delta tables sees them until they are committed. The
commit of table `files` comes first and decides: it says which captures are in. It holds two application transactions, the writer's
*claim* and the number of the state that it commits; a writer that began later has made a claim of its own, and the commit of the earlier
one fails completely. The other tables follow; if the writer is killed before they have, their files are named by the state, and the next
writer commits them first. Each table notes what it holds by the same transaction, so nothing is committed twice.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from ..errors import UsageError, how_to_install, refuse
from .sink import Sink
from .storage import Folder
from .tables import DATE, TABLES, Input, schema, tables_with
from .write import Written

try:
    from deltalake import CommitProperties, DeltaTable, Transaction, WriterProperties, write_deltalake
    from deltalake.exceptions import CommitFailedError, DeltaError
    from deltalake.transaction import AddAction
except ModuleNotFoundError as error:
    raise UsageError(f"--format delta needs the package deltalake: {how_to_install('delta')}") from error

if TYPE_CHECKING:
    from .pipeline import State

APP, CLAIM = "streamdump.state", "streamdump.claim"
BATCH_BITS = 24
"""The number of a state is the claim of its writer, and the number of its unit in the last bits."""

DECIDES = "files"
"""The table whose commit decides."""

COMPACTED = 16
"""Commits, of one run or of several, after which the next one puts small files together."""


class DeltaSink(Sink):
    """Delta tables: tasks write where they are, and a commit of each decides what counts."""

    def __init__(self, place: Folder, tables: Folder, fields: str) -> None:
        """`fields`: one of `tables.FIELDS`."""
        super().__init__(place, tables)
        self._wanted = tables_with(fields)
        self._open: dict[str, Any] = {}
        self._claim = 0
        """The number of the own claim, 0 without one."""

    def begin(self) -> None:
        """Make the tables, or give them the columns that are new, and claim to be the one who writes."""
        if self._claim:
            return
        with _in_one_sentence(self.tables):
            self._open = {name: _made(self.tables, name) for name in TABLES if name in self._wanted or is_delta(self.tables.at(name))}
            self._claim = self._last(CLAIM) + 1
            self._add(DECIDES, [], {CLAIM: self._claim})
            self.committed = self.place.at(f"state-{self._last(APP)}.json")

    @property
    def rows(self) -> bool:
        return is_delta(self.tables.at(DECIDES)) and self._last(APP) > 0

    def captures(self) -> list[Input]:
        self.begin()
        table = self._open[DECIDES].to_pyarrow_table(columns=list(Input.__struct_fields__))
        return msgspec.convert(table.to_pylist(), list[Input])

    def load(self, kind: type[State]) -> State | None:
        if not is_delta(self.tables.at(DECIDES)):
            return None
        self.begin()
        return super().load(kind)

    def commit(self, state: State) -> None:
        # A writer with a later claim writes another state of this unit; the commit decides which one counts
        state.version = self._claim << BATCH_BITS | state.batch
        self.committed = self.place.at(f"state-{state.version}.json")
        super().commit(state)
        # Each commit has added a file to this table
        self._open[DECIDES].update_incremental()
        if len(self._open[DECIDES].file_uris()) > COMPACTED:
            self.compact()

    def _show(self, state: State) -> None:
        with _in_one_sentence(self.tables):
            for name in (DECIDES, *(name for name in self._open if name != DECIDES)):
                # A table that has this transaction has its files
                if self._last(APP, name) < state.version:
                    refuse(
                        (
                            name == DECIDES and self._last(CLAIM) != self._claim,
                            f"{self.tables}: another streamdump has started writing to it; nothing was added",
                        )
                    )
                    try:
                        self._add(name, state.written.get(name, ()), {APP: state.version, CLAIM: self._claim})
                    except CommitFailedError:
                        # One that completes this state as well may have been first
                        if self._last(APP, name) < state.version:
                            raise

    def finish(self, out: Folder) -> None:
        self.place.remove()

    def compact(self) -> None:
        """Put small files together. What fails is left for the next time: all rows are in."""
        for table in self._open.values():
            with suppress(DeltaError, OSError):
                table.update_incremental()
                table.optimize.compact(max_concurrent_tasks=1, writer_properties=WriterProperties(compression="ZSTD"))
                # What was put together stays a week, the library's default, for those that still read it; as long stays what tasks wrote
                # that no commit names
                table.vacuum(dry_run=False, full=True)

    def _last(self, app: str, name: str = DECIDES) -> int:
        """The last transaction of an application in a table."""
        self._open[name].update_incremental()
        return int(self._open[name].transaction_version(app) or 0)

    def _add(self, name: str, files: Sequence[Written], apps: Mapping[str, int]) -> None:
        """Raises `CommitFailedError` where somebody else has committed a transaction of the same name."""
        now = time.time_ns() // 1_000_000
        table, by = self._open[name], list(TABLES[name].partitioned)
        actions = [AddAction(one.name, one.size, one.partition, now, True, _stats(one)) for one in files if one.rows]
        properties = CommitProperties(app_transactions=[Transaction(app, version, now) for app, version in apps.items()])
        table.create_write_transaction(actions, "append", table.schema(), by or None, commit_properties=properties)


def is_delta(table: Folder) -> bool:
    """Whether a folder is a Delta table."""
    return table.at("_delta_log").exists()


def files_of(table: Folder) -> list[str]:
    """The Parquet files of a table, by the names that this package knows them by."""
    with _in_one_sentence(table):
        found = DeltaTable(table.name, storage_options=_options()).get_add_actions()
    return [table.at(path).name for path in pa.table(found).column("path").to_pylist()]


def _options() -> dict[str, str]:
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or ""
    return {"AWS_ALLOW_HTTP": "true"} if endpoint.startswith("http://") else {}


def _made(tables: Folder, name: str) -> Any:
    """A table with at least the columns that this version of streamdump writes."""
    place, wanted, by = tables.at(name).name, schema(name), list(TABLES[name].partitioned)
    if by:
        wanted = wanted.append(pa.field(DATE, pa.date32()))
    table = DeltaTable.create(place, wanted, mode="ignore", partition_by=by, storage_options=_options())
    there = pa.schema(table.schema())
    try:
        new = pa.unify_schemas([there, wanted]) != there
    except pa.ArrowTypeError as error:
        raise UsageError(f"{tables}: table {name} does not fit this version of streamdump: {error}; choose another --out") from error
    if new:
        write_deltalake(table, pa.Table.from_batches([], wanted), mode="append", schema_mode="merge")
    return table


def _stats(one: Written) -> str:
    stats: dict[str, Any] = {"numRecords": one.rows}
    if one.span is not None:
        stats |= {"minValues": {"time_ns": one.span[0]}, "maxValues": {"time_ns": one.span[1]}, "nullCount": {"time_ns": 0}}
    return msgspec.json.encode(stats).decode()


@contextmanager
def _in_one_sentence(place: Folder) -> Iterator[None]:
    """Errors of the library are `UsageError`s in one sentence."""
    try:
        yield
    except CommitFailedError as error:
        raise UsageError(f"{place}: another streamdump writes to it; nothing was added") from error
    except (OSError, DeltaError) as error:
        lines = [re.sub(r"\x1b\[[0-9;]*m|\u21b3", "", line).strip() for line in str(error).splitlines()] or [type(error).__name__]
        raise UsageError(f"{place}: {': '.join(dict.fromkeys((lines[0], lines[-1])))}") from error
