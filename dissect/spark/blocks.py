"""Rows of packets put in order, however many there are, and sent to where their conversation is dissected.

Spark would handle each row by itself: make an object of it, sort it, and hand it to Python again, which costs more than all other work
on it here. So a task sorts some megabytes of rows at a time and makes *blocks* of them: bytes that hold the sorted rows of one part as an
Arrow stream. Spark shuffles blocks. The task of a part writes its blocks to a file, maps that into memory, and copies its rows in order, a
range of them at a time.
"""

from __future__ import annotations

import itertools
import mmap
import os
import tempfile
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import IO

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

Ints = NDArray[np.int64]

ROUND = 8 << 20
"""Bytes of rows that are sorted at once. Spark's own worker keeps some ten times as much before it hands blocks on."""

RANGE, SAMPLED = 65_536, 128
"""About how many rows are sorted by their keys at once, 40 bytes each; and of how many rows one is looked at to divide them so."""

MERGED = 500
"""Rows of a batch of merged ones; each may have 64 kB."""


class Sorter:
    """Makes blocks of rows sorted by the columns `order`, each for the part that `part_of` returns for its rows (None: all for part 0)."""

    def __init__(self, order: Sequence[str], part_of: Callable[[pa.RecordBatch], Ints] | None = None) -> None:
        self._order = order
        self._part_of = part_of
        self._batches: list[pa.RecordBatch] = []
        """Rows that wait to be sorted."""
        self._bytes = 0

    def add(self, batch: pa.RecordBatch) -> Iterator[tuple[int, bytes]]:
        """Add rows; yield the blocks that are full."""
        if batch.num_rows:
            self._batches.append(batch)
            self._bytes += batch.get_total_buffer_size()
            if self._bytes >= ROUND:
                yield from self.close()

    def close(self) -> Iterator[tuple[int, bytes]]:
        """Yield the blocks of the other rows."""
        if not self._batches:
            return
        batch, self._batches, self._bytes = _joined(self._batches), [], 0
        part = np.zeros(batch.num_rows, np.int64) if self._part_of is None else self._part_of(batch)
        rows = np.lexsort((*_keys([batch], self._order), part))
        batch, part = batch.take(pa.array(rows)), part[rows]
        borders = [0, *(np.flatnonzero(np.diff(part)) + 1).tolist(), batch.num_rows]
        for first, stop in itertools.pairwise(borders):
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, batch.schema) as out:
                out.write_batch(batch.slice(first, stop - first))
            yield int(part[first]), bytes(sink.getvalue())


class Runs:
    """Blocks of one part, and rows that are made blocks here, to be merged by the columns `order`."""

    def __init__(self, order: Sequence[str], blocks: Iterable[bytes] = ()) -> None:
        self._order = order
        self._sorter = Sorter(order)
        self._sizes: list[int] = []
        self._file: IO[bytes] | None = None
        for block in blocks:
            self.add(block)

    def add_rows(self, batch: pa.RecordBatch) -> None:
        """Add rows."""
        for _, block in self._sorter.add(batch):
            self.add(block)

    def add(self, block: bytes) -> None:
        """Add a block."""
        if self._file is None:
            # Where Spark keeps such things too
            folders = [one for one in os.environ.get("SPARK_LOCAL_DIRS", "").split(",") if one and Path(one).is_dir()]
            self._file = tempfile.TemporaryFile(dir=folders[0] if folders else None)  # noqa: SIM115 - it lives as long as its blocks
        self._file.write(block)
        self._sizes.append(len(block))

    def merged(self) -> Iterator[pa.RecordBatch]:
        """Yield all rows in order."""
        for _, block in self._sorter.close():
            self.add(block)
        if self._file is not None:
            with self._file as file:
                file.flush()
                yield from self._merged(pa.py_buffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)))

    def _merged(self, mapped: pa.Buffer) -> Iterator[pa.RecordBatch]:
        ends = itertools.accumulate(self._sizes)
        streams = [pa.ipc.open_stream(mapped.slice(end - size, size)) for end, size in zip(ends, self._sizes, strict=True)]
        batches = [batch for stream in streams for batch in stream]
        # The keys of all rows may be too many: those of one range at a time are sorted
        samples = _keys(batches, self._order, SAMPLED)
        for border in np.lexsort(samples)[RANGE // SAMPLED :: RANGE // SAMPLED]:
            key = tuple(column[border].item() for column in reversed(samples))
            counts = [bisect_left(range(batch.num_rows), key, key=partial(self._key, batch)) for batch in batches]
            yield from self._in_order([batch.slice(0, count) for batch, count in zip(batches, counts, strict=True) if count])
            batches = [batch.slice(count) for batch, count in zip(batches, counts, strict=True)]
        yield from self._in_order(batches)

    def _key(self, batch: pa.RecordBatch, at: int) -> tuple[int, ...]:
        return tuple(batch.column(name)[at].as_py() for name in self._order)

    def _in_order(self, batches: Sequence[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        begins = np.cumsum([0, *(batch.num_rows for batch in batches)])
        rows = np.lexsort(_keys(batches, self._order)) if batches else ()
        for at in range(0, len(rows), MERGED):
            some = rows[at : at + MERGED]
            source = np.searchsorted(begins, some, "right") - 1
            found = _joined([batches[one].take(pa.array(some[source == one] - begins[one])) for one in np.unique(source)])
            # The rows of each batch are in order; this puts those of all batches in order
            yield found.take(pa.array(np.argsort(np.argsort(source, kind="stable"))))


def _keys(batches: Sequence[pa.RecordBatch], order: Sequence[str], step: int = 1) -> list[Ints]:
    """The columns to sort by, of each `step`-th row, the last one first as `numpy.lexsort` wants them."""
    columns = [[batch.column(name).to_numpy(zero_copy_only=False)[::step] for batch in batches] for name in reversed(order)]
    return [np.concatenate(column).astype(np.int64) for column in columns]


def _joined(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """The rows of several batches in one."""
    if len(batches) == 1:
        return batches[0]
    return pa.Table.from_batches(batches).combine_chunks().to_batches()[0]
