"""Delta tables, through `deltalake`: appended to, committed at once or not at all, also where renaming a file is no commit.

Tasks write Parquet files into the folders of the tables, where nobody who reads Delta tables sees them until they are committed. The
commit of table `files` comes first and decides: it says which captures are in. It holds two application transactions, the writer's
*claim* and what it commits; a writer that began later has made a claim of its own, and the commit of the earlier one fails completely.
The other tables follow; if the writer is killed before they have, their files are in the writer's folder, and the next writer
commits them first. Each table notes what it holds by the same transaction, so nothing is committed twice.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from typing import Any
from urllib.parse import quote, unquote

import msgspec
import pyarrow as pa

from ..errors import UsageError, how_to_install
from .storage import Folder
from .tables import DATE, SCHEMA, SCHEMA_KEY, TABLES, Input, schema, tables_with
from .write import Written

CLAIM = "streamdump.claim"

DECIDES = "files"
"""The table whose commit decides."""

SMALL = 32 << 20
"""Files of fewer bytes are put together."""

TARGET_BYTES = 128 << 20
"""Bytes of a file that is put together, about."""

TOGETHER = 16
"""The number of small files of one partition from which on they are put together."""

RETENTION_HOURS = 168
"""What was put together stays for those that still read it."""


class CommitLost(UsageError):
    """Another writer has begun since."""


def check() -> None:
    """Raises `UsageError` where the library is missing."""
    if find_spec("deltalake") is None:
        raise UsageError(f"--format delta needs the package deltalake: {how_to_install('delta')}")


class Delta:
    """The tables in one folder."""

    def __init__(self, out: Folder, fields: str = "json") -> None:
        """`fields`: one of `tables.FIELDS`."""
        self._out = out
        self._wanted = tables_with(fields)
        self._tables: dict[str, Any] = {}
        self.claim = 0
        """The number of the own claim, 0 without one."""

    @staticmethod
    def there(out: Folder) -> bool:
        """Whether the tables of a folder are such."""
        return out.at(DECIDES, "_delta_log").exists()

    def begin(self) -> None:
        """Make the tables, or give them the columns that are new, and claim to be the one who writes."""
        for name in TABLES:
            if name in self._wanted or self._is_there(name):
                self._tables[name] = self._made(name)
        table = self._tables[DECIDES]
        while True:
            table.update_incremental()
            claim = (table.transaction_version(CLAIM) or 0) + 1
            try:
                self._add(DECIDES, [], {CLAIM: claim})
            except _Conflict:
                continue
            self.claim = claim
            return

    def read(self) -> None:
        """Open tables that are there."""
        self._tables = {name: self._opened(name) for name in TABLES if self._is_there(name)}

    def files(self, table: str) -> list[str]:
        """The Parquet files of a table, by the names that this package knows them by."""
        if table not in self._tables:
            return []
        found = pa.table(self._tables[table].get_add_actions()).column("path").to_pylist()
        return [self._out.at(table, *unquote(name).split("/")).name for name in found]

    def captures(self) -> list[Input]:
        """The captures that are in."""
        table = self._tables[DECIDES]
        table.update_incremental()
        return msgspec.convert(table.to_pyarrow_table(columns=list(Input.__struct_fields__)).to_pylist(), list[Input])

    def committed(self, app: str) -> int:
        """The last transaction of this name."""
        table = self._tables[DECIDES]
        table.update_incremental()
        return int(table.transaction_version(app) or 0)

    def commit(self, app: str, version: int, files: Mapping[str, Sequence[Written]]) -> None:
        """Add files to the tables; what is in already, by transaction, stays as it is. Raises `CommitLost`."""
        for name in (DECIDES, *(name for name in self._tables if name != DECIDES)):
            table = self._tables[name]
            table.update_incremental()
            if (table.transaction_version(app) or 0) >= version:
                continue
            apps = {app: version}
            if name == DECIDES:
                if table.transaction_version(CLAIM) != self.claim:
                    raise CommitLost(f"{self._out}: another streamdump has started writing to it; nothing was added")
                apps[CLAIM] = self.claim
            try:
                self._add(name, files.get(name, ()), apps)
            except _Conflict as error:
                table.update_incremental()
                if (table.transaction_version(app) or 0) < version:
                    raise CommitLost(f"{self._out}: another streamdump writes to it; nothing was added") from error

    def compact(self) -> int:
        """Put small files together where there are many; how many are gone. What fails is left for the next time: all rows are in."""
        from deltalake import WriterProperties
        from deltalake.exceptions import DeltaError

        gone = 0
        for table in self._tables.values():
            table.update_incremental()
            sizes: dict[str, int] = {}
            for action in pa.table(table.get_add_actions()).to_pylist():
                if action["size_bytes"] < SMALL:
                    key = str(action.get("partition"))
                    sizes[key] = sizes.get(key, 0) + 1
            if max(sizes.values(), default=0) >= TOGETHER:
                properties = WriterProperties(compression="ZSTD")
                with suppress(DeltaError, OSError):
                    done = table.optimize.compact(target_size=TARGET_BYTES, max_concurrent_tasks=1, writer_properties=properties)
                    gone += done["numFilesRemoved"]
                    table.vacuum(retention_hours=RETENTION_HOURS, dry_run=False)
        return gone

    def _is_there(self, name: str) -> bool:
        return self._out.at(name, "_delta_log").exists()

    def _options(self) -> dict[str, str]:
        endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or ""
        return {"AWS_ALLOW_HTTP": "true"} if endpoint.startswith("http://") else {}

    def _opened(self, name: str) -> Any:
        from deltalake import DeltaTable

        return _said(lambda: DeltaTable(self._out.at(name).name, storage_options=self._options()), self._out)

    def _made(self, name: str) -> Any:
        """A table with at least the columns that this version of streamdump writes."""
        from deltalake import DeltaTable, write_deltalake

        wanted = _columns(name)
        options = self._options()
        if not _said(lambda: DeltaTable.is_deltatable(self._out.at(name).name, options), self._out):
            return _said(
                lambda: DeltaTable.create(
                    self._out.at(name).name,
                    wanted,
                    mode="ignore",
                    partition_by=list(TABLES[name].partitioned),
                    configuration={SCHEMA_KEY: str(SCHEMA)},
                    storage_options=options,
                    raise_if_key_not_exists=False,
                ),
                self._out,
            )
        table = self._opened(name)
        there = pa.schema(table.schema())
        missing = _missing(name, wanted, there, self._out)
        if missing:
            _said(lambda: write_deltalake(table, pa.Table.from_batches([], wanted), mode="append", schema_mode="merge"), self._out)
        if int(table.metadata().configuration.get(SCHEMA_KEY, "0")) < SCHEMA:
            properties = {SCHEMA_KEY: str(SCHEMA)}
            _said(lambda: table.alter.set_table_properties(properties, raise_if_not_exists=False), self._out)
        return self._opened(name)

    def _add(self, name: str, files: Sequence[Written], apps: Mapping[str, int]) -> None:
        from deltalake import CommitProperties, Transaction
        from deltalake.exceptions import CommitFailedError
        from deltalake.transaction import AddAction

        now = time.time_ns() // 1_000_000
        actions = [AddAction(quote(one.name, safe="/="), one.size, one.partition, now, True, _stats(one)) for one in files if one.rows]
        table = self._tables[name]
        properties = CommitProperties(app_transactions=[Transaction(app, version, now) for app, version in apps.items()])
        try:
            table.create_write_transaction(
                actions, "append", table.schema(), list(TABLES[name].partitioned) or None, commit_properties=properties
            )
        except CommitFailedError as error:
            raise _Conflict from error
        except Exception as error:
            raise _told(error, self._out) from error


class _Conflict(Exception):
    """Somebody else committed a transaction of the same name."""


def _columns(name: str) -> Any:
    whole = schema(name)
    return whole.append(pa.field(DATE, pa.date32())) if TABLES[name].partitioned else whole


def _missing(name: str, wanted: Any, there: Any, out: Folder) -> bool:
    """Whether columns, or members of structs, are missing that this version writes; raises `UsageError` where one is of another type."""

    def look(path: str, mine: Any, theirs: Any) -> bool:
        if pa.types.is_struct(mine) and pa.types.is_struct(theirs):
            known = {field.name: field.type for field in theirs}
            # All are looked at, whatever the first ones say.
            new = [field.name not in known or look(f"{path}.{field.name}", field.type, known[field.name]) for field in mine]
            return any(new)
        if pa.types.is_list(mine) and (pa.types.is_list(theirs) or pa.types.is_large_list(theirs)):
            return look(path, mine.value_type, theirs.value_type)
        if mine != theirs:
            raise UsageError(f"{out}: {path} is {theirs} there and {mine} in this version of streamdump; choose another --out")
        return False

    return look(name, pa.struct(list(wanted)), pa.struct(list(there)))


def _stats(one: Written) -> str:
    stats: dict[str, Any] = {"numRecords": one.rows}
    if one.span is not None:
        stats |= {"minValues": {"time_ns": one.span[0]}, "maxValues": {"time_ns": one.span[1]}, "nullCount": {"time_ns": 0}}
    return msgspec.json.encode(stats).decode()


def _said(action: Callable[[], Any], out: Folder) -> Any:
    try:
        return action()
    except Exception as error:
        raise _told(error, out) from error


def _told(error: Exception, out: Folder) -> Exception:
    """What the library says, as one sentence."""
    if not isinstance(error, OSError) and not type(error).__module__.startswith(("deltalake", "_internal")):
        return error
    lines = [re.sub(r"\x1b\[[0-9;]*m|\u21b3", "", line).strip() for line in str(error).splitlines()]
    return UsageError(f"{out}: {': '.join(dict.fromkeys((lines[0], lines[-1])))}" if lines else f"{out}: {type(error).__name__}")
