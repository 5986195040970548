"""Rows put in order, however many there are, and the frames in which values wait in files."""

from __future__ import annotations

import heapq
import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

import msgspec

Row = tuple[int, int, int, int, bytes]
"""Four numbers by which rows are sorted, and their data."""

ROUND = 48 << 20
"""Bytes of rows that are sorted in memory."""

ROW = 300
"""Bytes that a row has beside its data, about."""

RUNS = 256
"""Limit of files with sorted rows, all of which are open; then they become one."""


def framed(value: Any) -> bytes:
    """A value behind its size."""
    data = msgspec.msgpack.encode(value)
    return len(data).to_bytes(4, "little") + data


def frames(stream: IO[bytes], kind: Any = Any) -> Iterator[Any]:
    """Yield the values in a stream of frames, as objects of type `kind`."""
    decode = msgspec.msgpack.Decoder(kind).decode
    while size := stream.read(4):
        yield decode(stream.read(int.from_bytes(size, "little")))


class Ordered:
    """Rows, which are iterated over in order, once. Most of them may wait in files."""

    def __init__(self, rows: Iterable[Row] = ()) -> None:
        self._rows: list[Row] = []
        self._size = 0
        self._runs: list[IO[bytes]] = []
        """Files with sorted rows."""
        for row in rows:
            self.add(row)

    def add(self, row: Row) -> None:
        """Add a row."""
        self._rows.append(row)
        self._size += len(row[-1]) + ROW
        if self._size >= ROUND:
            self._rows.sort()
            self._runs.append(_written(self._rows))
            self._rows, self._size = [], 0
            if len(self._runs) >= RUNS:
                self._runs = [_written(self)]

    def __iter__(self) -> Iterator[Row]:
        self._rows.sort()
        with ExitStack() as files:
            runs = [frames(files.enter_context(file), Row) for file in self._runs]
            yield from heapq.merge(*runs, self._rows)


def _written(rows: Iterable[Row]) -> IO[bytes]:
    """A file with these rows, to be read from its start."""
    # Where Spark keeps such things too
    folders = [one for one in os.environ.get("SPARK_LOCAL_DIRS", "").split(",") if one and Path(one).is_dir()]
    file = tempfile.TemporaryFile(dir=folders[0] if folders else None)  # noqa: SIM115 - it is closed when its rows are read
    file.writelines(map(framed, rows))
    file.seek(0)
    return file
