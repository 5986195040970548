"""Where a run commits: the state and the files of a unit in one step, which is complete or not done at all.

Tasks write files that nobody knows of. What counts is the state, which names them: on a disk the rename of `state.json`, in a store the
object of that name; of Delta tables the commit of table `files`, whose transaction is the number of a state that was written before. What
follows, that the files of the state are seen, is done again by the next start where this one was killed.
"""

from __future__ import annotations

import fcntl
import os
from typing import TYPE_CHECKING

import msgspec

from ..errors import UsageError
from . import storage
from .splits import each
from .storage import Folder
from .tables import TABLES, Input, tables_with

if TYPE_CHECKING:
    from .pipeline import State

APP = "streamdump.state"
BATCH_BITS = 24
"""The transaction of a unit of Delta tables is the claim of its writer, and the unit's number in the last bits."""

COMPACTED = 16
"""Units after which small files of Delta tables are put together."""

SUCCESS = "_SUCCESS"


class Sink:
    """Parquet files: `place` has the state and unfinished files, `tables` the visible ones."""

    def __init__(self, place: Folder, tables: Folder, fields: str) -> None:
        """`fields`: one of `tables.FIELDS`."""
        self.place = place
        self._wanted = tables_with(fields)
        self.tables = tables
        self._lock: int | None = None

    def lock(self, why: str, mode: int = 0o777) -> None:
        """Make the place, and keep others from writing to it; the lock goes with the process. A store has no lock."""
        path, above = self.place.path, self.place.above()
        if path is None:
            return
        try:
            above.make()
            path.mkdir(mode=mode, exist_ok=True)
            self._lock = os.open(path / "lock", os.O_RDWR | os.O_CREAT, 0o644)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self.close()
            raise UsageError(f"{above}: {why}") from error
        except OSError as error:
            self.close()
            raise UsageError(f"{above}: cannot be written: {storage.why(error)}") from error

    def close(self) -> None:
        """Let others write."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def begin(self) -> None:
        """Make what tables need before there are files."""
        for table in self._wanted:
            self.tables.at(table).make()

    @property
    def there(self) -> bool:
        """Whether a state can have been committed."""
        return True

    @property
    def rows(self) -> bool:
        """Whether there is anything in the tables."""
        return any(self.tables.at(table).names() for table in TABLES)

    def captures(self) -> list[Input]:
        """The captures that are in tables which are added to."""
        return []

    def name_of(self, batch: int) -> str:
        """The name of the state after `batch` units."""
        return "state.json"

    @property
    def committed(self) -> Folder:
        """The state that counts."""
        return self.place.at("state.json")

    def load(self, kind: type[State]) -> State | None:
        """The state that was committed, whose files are seen from here on; None where nothing was committed."""
        try:
            state = msgspec.json.decode(self.committed.read(), type=kind)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.MsgspecError) as error:
            raise UsageError(f"{self.committed}: cannot be read: {error}") from error
        self.publish(state)
        return state

    def commit(self, state: State) -> None:
        """Make a unit count."""
        self.place.at(self.name_of(state.batch)).write(msgspec.json.encode(state), durable=True)
        self.publish(state)

    def publish(self, state: State) -> None:
        """Let what the last unit wrote be seen, and remove what no one needs any more."""
        moves = [(table, one.name) for table, files in state.written.items() for one in files]
        each(lambda one: self._move(state, *one), moves, lambda _: self.tables.name)
        self.sweep(state)

    def _move(self, state: State, table: str, name: str) -> None:
        *folders, last = name.split("/")
        made = self.place.at(state.place, "files", table, *folders, last)
        if made.exists():
            move(made, self.tables.at(table, *folders, f"batch-{state.batch:07d}-{last}"))

    def sweep(self, state: State) -> None:
        """Remove what tasks wrote that belongs to no unit."""
        kept = {state.place, *(one.partition("/")[0] for one in state.carry), self.committed.name.rpartition("/")[2]}
        for name in self.place.names():
            if name.startswith(("batch-", "state-")) and name not in kept:
                self.place.at(name).remove()

    def forget(self, batch: str) -> None:
        """Remove what tasks of a unit wrote that did not end well."""
        self.place.at(batch).remove()

    def finish(self, out: Folder) -> None:
        """Let `out` have the tables of a run that has ended."""
        if self.tables.name == out.name:
            out.at(SUCCESS).write(b"")
        else:
            if not out.names():
                out.remove()
            move(self.tables, out)
        self.place.remove()


class DeltaSink(Sink):
    """Delta tables: tasks write where they are, and a commit of each decides what counts."""

    def __init__(self, place: Folder, tables: Folder, fields: str) -> None:
        from .delta import Delta, check

        check()
        super().__init__(place, tables, fields)
        self.delta = Delta(tables, fields)

    def begin(self) -> None:
        if not self.delta.claim:
            self.delta.begin()

    @property
    def there(self) -> bool:
        return self.delta.there(self.tables)

    def captures(self) -> list[Input]:
        return self.delta.captures()

    @property
    def rows(self) -> bool:
        return bool(self.delta.committed(APP) or self.delta.files("files"))

    def name_of(self, batch: int) -> str:
        return f"state-{self.delta.claim << BATCH_BITS | batch}.json"

    @property
    def committed(self) -> Folder:
        return self.place.at(f"state-{self.delta.committed(APP)}.json")

    def load(self, kind: type[State]) -> State | None:
        self.begin()
        return super().load(kind)

    def commit(self, state: State) -> None:
        # A writer with a later claim writes another state of this unit; the commit decides which one counts
        state.version = self.delta.claim << BATCH_BITS | state.batch
        super().commit(state)
        if state.batch % COMPACTED == 0:
            self.delta.compact()

    def publish(self, state: State) -> None:
        self.delta.commit(APP, state.version, state.written)
        self.sweep(state)

    def forget(self, batch: str) -> None:
        super().forget(batch)
        for table in TABLES:
            for name in storage.walk(self.tables.at(table).name):
                if batch.rpartition("-")[2] in storage.base(name):
                    Folder(name).remove()

    def finish(self, out: Folder) -> None:
        self.place.remove()
        self.delta.compact()


def move(made: Folder, to: Folder) -> None:
    """Let files be seen."""
    made.move(to)
