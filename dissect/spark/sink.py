"""Where a run commits: the state and the files of a unit in one step, which is complete or not done at all.

Tasks write files that nobody knows of. What counts is the state, which names them: on a disk the rename of `state.json`, in a store the
object of that name; of Delta tables (`delta.py`) the commit of table `files`, whose transaction is the number of a state that was written
before. What follows, that the files of the state are seen, is done again by the next start where this one was killed.
"""

from __future__ import annotations

import fcntl
from contextlib import ExitStack
from typing import TYPE_CHECKING

import msgspec

from ..errors import UsageError
from . import storage
from .splits import each
from .storage import Folder
from .tables import TABLES, Input

if TYPE_CHECKING:
    from .pipeline import State

SUCCESS = "_SUCCESS"


class Sink:
    """Parquet files: `place` has the state and unfinished files, `tables` the visible ones."""

    def __init__(self, place: Folder, tables: Folder) -> None:
        self.place = place
        self.tables = tables
        self.committed = place.at("state.json")
        """The state that counts."""
        self.locked = False
        """Whether others are kept from writing."""
        self._closing = ExitStack()

    def lock(self, why: str, mode: int = 0o777) -> None:
        """Make the place, and keep others from writing to it; the lock goes with the process. A store has no lock."""
        path, above = self.place.path, self.place.above()
        if path is None:
            return
        try:
            above.make()
            path.mkdir(mode=mode, exist_ok=True)
            fcntl.flock(self._closing.enter_context((path / "lock").open("wb")), fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.locked = True
        except OSError as error:
            self.close()
            reason = why if isinstance(error, BlockingIOError) else f"cannot be written: {storage.why(error)}"
            raise UsageError(f"{above}: {reason}") from error

    def close(self) -> None:
        """Let others write."""
        self._closing.close()
        self.locked = False

    def begin(self) -> None:
        """Make what tables need before there are files."""

    @property
    def rows(self) -> bool:
        """Whether there is anything in the tables."""
        return any(self.tables.at(table).names() for table in TABLES)

    def captures(self) -> list[Input]:
        """The captures that are in tables which are added to."""
        return []

    def load(self, kind: type[State]) -> State | None:
        """The state that was committed, whose files are seen from here on; None where nothing was committed."""
        try:
            state = msgspec.json.decode(self.committed.read(), type=kind)
        except FileNotFoundError:
            return None
        except msgspec.ValidationError as error:
            raise UsageError(f"{self.committed}: was written by another version of streamdump; choose another --out") from error
        except (OSError, msgspec.DecodeError) as error:
            raise UsageError(f"{self.committed}: cannot be read: {error}") from error
        self.publish(state)
        return state

    def commit(self, state: State) -> None:
        """Make a unit count."""
        self.committed.write(msgspec.json.encode(state))
        self.publish(state)

    def publish(self, state: State) -> None:
        """Let what the last unit wrote be seen, and remove what tasks wrote that belongs to no unit."""
        self._show(state)
        kept = {state.place, *(one.partition("/")[0] for one in state.carry), storage.base(self.committed.name)}
        for name in self.place.names():
            if name.startswith(("batch-", "state-")) and name not in kept:
                self.place.at(name).remove()

    def _show(self, state: State) -> None:
        """Let the files that a state names be seen, as far as they are not yet."""

        def move(written: tuple[str, str]) -> None:
            table, name = written
            folders, slash, last = name.rpartition("/")
            made = self.place.at(state.place, "files", table, name)
            if made.exists():
                made.move(self.tables.at(table, f"{folders}{slash}batch-{state.batch:07d}-{last}"))

        each(move, [(table, one.name) for table, files in state.written.items() for one in files], lambda _: self.tables.name)

    def finish(self, out: Folder) -> None:
        """Let `out` have the tables of a run that has ended."""
        if self.tables.name == out.name:
            out.at(SUCCESS).write(b"")
        else:
            if not out.names():
                out.remove()
            self.tables.move(out)
        self.place.remove()


def sink_of(form: str, place: Folder, tables: Folder, fields: str) -> Sink:
    """Return where a run commits whose tables have this form, parquet or delta; `fields`: one of `tables.FIELDS`."""
    if form != "delta":
        return Sink(place, tables)
    from .delta import DeltaSink

    return DeltaSink(place, tables, fields)
