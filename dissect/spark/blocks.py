"""Rows of packets put in order, however many there are, and sent to where their conversation is dissected.

Spark would take each row for itself: make an object of it, sort it, and hand it to Python again, which costs more than all that is
done with it here. So a task sorts some megabytes of rows at a time and makes *blocks* of them: bytes that hold the rows of one part,
sorted, as an Arrow stream of small batches. What goes through Spark's shuffle are blocks. Whoever is given the blocks of a part merges
them, with a batch of each at hand; what does not fit into memory waits in a file.
"""

from __future__ import annotations

import itertools
import mmap
import os
import struct
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Key = tuple[int, ...]

ROUND = 8 << 20
"""Bytes of rows that are sorted at once. Spark's own worker keeps some ten times as much before it hands blocks on."""

PIECE = 256 << 10
"""Bytes of a batch in a block, about."""

IN_MEMORY = 32 << 20
"""Bytes of blocks that wait for their merging in memory; the others wait in a file."""

ROW = 128
"""What a row takes besides its payload, about."""


class SortOrder:
    """By which columns rows are sorted; a minus sign: descending."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = [(name.removeprefix("-"), -1 if name.startswith("-") else 1) for name in names]
        self._head = struct.Struct(f"<{len(names)}q")

    def keys(self, batch: pa.RecordBatch) -> list[Ints]:
        """The columns to compare."""
        return [batch.column(name).to_numpy(zero_copy_only=False).astype(np.int64) * sign for name, sign in self.names]

    def block(self, batch: pa.RecordBatch, keys: Sequence[Ints], first: int, stop: int, ends: Ints) -> bytes:
        """The rows from `first` to `stop` of a sorted batch; `ends`: the bytes up to each row's end."""
        sink = pa.BufferOutputStream()
        sink.write(self._head.pack(*(int(key[first]) for key in keys)))
        with pa.ipc.new_stream(sink, batch.schema) as out:
            while first < stop:
                before = int(ends[first - 1]) if first else 0
                here = min(max(int(np.searchsorted(ends, before + PIECE, "right")), first + 1), stop)
                out.write_batch(batch.slice(first, here - first))
                first = here
        return bytes(sink.getvalue())

    def first(self, block: bytes) -> Key:
        """The key of its first row."""
        return self._head.unpack_from(block)

    @property
    def head(self) -> int:
        """Bytes of a block before its rows."""
        return self._head.size


class Sorter:
    """Takes rows and gives blocks, each for the part that `part_of` tells of its rows (None: all of them for part 0)."""

    def __init__(self, order: SortOrder, part_of: Callable[[pa.RecordBatch], Ints] | None = None) -> None:
        self._order = order
        self._part_of = part_of
        self.batches: list[pa.RecordBatch] = []
        """What waits to be sorted."""
        self._bytes = 0

    def add(self, batch: pa.RecordBatch) -> Iterator[tuple[int, bytes]]:
        """Take rows; the blocks that are full."""
        if batch.num_rows:
            self.batches.append(batch)
            self._bytes += batch.get_total_buffer_size()
            if self._bytes >= ROUND:
                yield from self.close()

    def close(self) -> Iterator[tuple[int, bytes]]:
        """What is left."""
        if not self.batches:
            return
        batch, self.batches, self._bytes = joined(self.batches), [], 0
        keys = self._order.keys(batch)
        part = np.zeros(batch.num_rows, np.int64) if self._part_of is None else self._part_of(batch)
        rows = np.lexsort((*reversed(keys), part))
        if (rows[1:] < rows[:-1]).any():
            batch, keys, part = batch.take(pa.array(rows)), [key[rows] for key in keys], part[rows]
        size = batch.column("length").fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64) + ROW
        ends = np.cumsum(size)
        borders = [0, *(np.flatnonzero(part[1:] != part[:-1]) + 1).tolist(), batch.num_rows]
        for first, stop in itertools.pairwise(borders):
            yield int(part[first]), self._order.block(batch, keys, first, stop, ends)

    def blocks(self, batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, bytes]]:
        """The blocks of these rows."""
        for batch in batches:
            yield from self.add(batch)
        yield from self.close()


class Runs:
    """Blocks of one part, and rows that are made blocks here, to be merged."""

    def __init__(self, order: SortOrder, blocks: Iterable[bytes] = ()) -> None:
        self._order = order
        self._sorter = Sorter(order)
        self._held: list[tuple[Key, bytes | tuple[int, int]]] = []
        """The first key of each, and its bytes or where they are in the file."""
        self._bytes = 0
        self._file: Any = None
        self._map: mmap.mmap | None = None
        self._end = 0
        for block in blocks:
            self.add(block)

    def take(self, batch: pa.RecordBatch) -> None:
        """Take rows."""
        for _, block in self._sorter.add(batch):
            self.add(block)

    def add(self, block: bytes) -> None:
        """Take a block."""
        first = self._order.first(block)
        if self._bytes + len(block) <= IN_MEMORY:
            self._bytes += len(block)
            self._held.append((first, block))
            return
        if self._file is None:
            # Where Spark keeps such things too.
            folders = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")
            self._file = tempfile.TemporaryFile(dir=folders[0] or None)  # noqa: SIM115 - it lives as long as its blocks
        self._file.write(block)
        self._held.append((first, (self._end, len(block))))
        self._end += len(block)

    @property
    def any(self) -> bool:
        """Whether there are rows."""
        return bool(self._held or self._sorter.batches)

    def merged(self) -> Iterator[pa.RecordBatch]:
        """All rows in order. What was read of a block is let go."""
        for _, block in self._sorter.close():
            self.add(block)
        waiting = sorted(self._held, key=lambda one: one[0], reverse=True)
        self._held = []
        if self._file is not None:
            self._file.flush()
            self._map = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)
        runs: list[_Run] = []
        while runs or waiting:
            if not runs:
                runs.append(self._open(waiting.pop()[1]))
            # Up to this row all that come before it are at hand.
            bound = min(run.last for run in runs)
            while waiting and waiting[-1][0] <= bound:
                runs.append(self._open(waiting.pop()[1]))
                bound = min(bound, runs[-1].last)
            taken = [batch for run in runs if (batch := run.take(bound)) is not None]
            runs = [run for run in runs if run.left]
            batch = joined(taken)
            if len(taken) > 1:
                rows = np.lexsort(tuple(reversed(self._order.keys(batch))))
                if (rows[1:] < rows[:-1]).any():
                    batch = batch.take(pa.array(rows))
            yield batch
        if self._file is not None:
            self._file.close()

    def _open(self, where: bytes | tuple[int, int]) -> _Run:
        if isinstance(where, bytes):
            return _Run(pa.BufferReader(pa.py_buffer(where).slice(self._order.head)), self._order)
        assert self._map is not None
        start, size = where
        return _Run(pa.BufferReader(pa.py_buffer(self._map).slice(start + self._order.head, size - self._order.head)), self._order)


class _Run:
    """A block that is read, and the batch of it at hand."""

    def __init__(self, source: Any, order: SortOrder) -> None:
        self._reader = pa.ipc.open_stream(source)
        self._order = order
        self.left = True
        self._load()

    def _load(self) -> None:
        batch = next(self._reader, None)
        if batch is None:
            self.left = False
            return
        self._batch, self._at = batch, 0
        self._keys = self._order.keys(batch)
        self.last: Key = tuple(int(key[-1]) for key in self._keys)

    def take(self, bound: Key) -> pa.RecordBatch | None:
        """The rows at hand up to a key."""
        low, high = self._at, self._batch.num_rows
        if bound < self.last:
            # Those before `low` come before the bound, those from `high` on after it; between them they are alike so far.
            for key, value in zip(self._keys, bound, strict=True):
                piece = key[low:high]
                low, high = low + int(np.searchsorted(piece, value, "left")), low + int(np.searchsorted(piece, value, "right"))
        first, self._at = self._at, high
        batch = self._batch.slice(first, high - first) if high > first else None
        if self._at == self._batch.num_rows:
            self._load()
        return batch


def joined(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """The rows of several batches in one."""
    if len(batches) == 1:
        return batches[0]
    return pa.Table.from_batches(batches).combine_chunks().to_batches()[0]
